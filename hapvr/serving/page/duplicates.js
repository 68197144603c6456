// Groups of copies and pairs of other kinds, with filters; the rest comes when it is asked for.

import { get, getDuplicateJob, mark, media, startDuplicateJob } from "./api.js";
import { bytes, chance, clock, element, markNames, notice, number, percent, probability, say } from "./dom.js";
import { picture } from "./results.js";
import { keepPairs, pairAddress } from "./session.js";

const PIECE = 50;
const KINDS = {
  copy: ["Copies", "each covers 80 % of the other"],
  contained: ["Contained", "one covers 80 % of the other"],
  overlap: ["Overlap", "parts are the same"],
  same_incident: ["Same incident", "alike, but nothing could be aligned for certain"],
};
const FACTS = [
  ["Size", (row) => row.width_px ? `${row.width_px} × ${row.height_px}` : "–"],
  ["Codec", (row) => row.codec || "–"],
  ["Length", (row) => row.duration_s === null ? "–" : clock(Math.round(row.duration_s))],
  ["Bytes", (row) => row.num_bytes ? bytes(row.num_bytes) : "–"],
];

export async function showDuplicates(place, values) {
  const chosen = (name) => values.get(name) ?? "";
  const select = (name, options) => element("select", { name }, options.map(([value, text]) =>
    element("option", { value, selected: value === chosen(name) }, text)));
  const form = element("form", { class: "filters card" },
    element("label", { class: "field" }, element("span", {}, "Kind"),
      select("kind", [["", "All"], ...Object.entries(KINDS).map(([value, [text]]) => [value, text])])),
    element("label", { class: "field" }, element("span", {}, "Folder"),
      element("input", { name: "folder", type: "text", value: chosen("folder"), placeholder: "source/folder", spellcheck: false })),
    element("label", { class: "field" }, element("span", {}, "Least probability"),
      element("input", { name: "min_probability", type: "number", min: 0.5, max: 1, step: "any", value: chosen("min_probability") || 0.9 })),
    element("button", { type: "submit" }, "Filter"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = [...new FormData(form)].filter(([, value]) => value !== "");
    location.hash = `#/duplicates?${new URLSearchParams(given)}`;
  });
  form.addEventListener("change", (event) => { if (event.target.matches("select")) form.requestSubmit(); });

  const count = element("p", { class: "quiet", role: "status" });
  const list = element("div", { class: "groups" });
  const more = element("button", { type: "button", class: "main", onclick: () => load() }, "Show more");
  const state = element("div", { role: "status" });
  place.append(element("h1", {}, "Duplicates"), form, state, count, list, element("p", {}, more));
  const pairs = [];
  let shown = 0;

  async function load() {
    more.disabled = true;
    try {
      const given = Object.fromEntries(["kind", "folder", "min_probability"].map((name) => [name, chosen(name)]));
      const found = await get("duplicates", { ...given, limit: PIECE, offset: shown });
      shown += found.groups.length;
      more.hidden = shown >= found.total;
      const unseen = !found.shards_searched;
      count.textContent = unseen ? "" : `${number(shown)} of ${number(found.total)} groups and pairs`;
      if (found.shards_searched < found.shards) {
        state.replaceChildren(notice(`${unseen ? "This collection has" : "Some videos of this collection have"} not been looked ` +
          "through for duplicates yet."), element("p", {}, element("button", { type: "button", class: "main",
          onclick: () => follow(startDuplicateJob) }, "Look through them now")));
        getDuplicateJob().then((job) => job.running && follow(() => job));
      }
      if (!found.total && !unseen) list.replaceChildren(element("p", { class: "card empty" }, "Nothing found."));
      list.append(...found.groups.map((group) => card(group, pairs)));
      keepPairs(pairs, location.hash);
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
    more.disabled = false;
  }

  // How far the search for duplicates is; the list again at its end.
  async function follow(begin) {
    const words = element("span", {}, "Looking for duplicates …");
    const bar = element("progress", { "aria-label": "progress of the search for duplicates" });
    state.replaceChildren(element("p", { class: "state" }, words, bar));
    try {
      for (let job = await begin(); job.running; job = await getDuplicateJob()) {
        if (!place.isConnected) return;
        words.textContent = `Looking for duplicates: ${number(job.done)} of ${number(job.total)} videos`;
        if (job.total) [bar.max, bar.value] = [job.total, job.done];
        await new Promise((next) => setTimeout(next, 1000));
      }
      const { error } = await getDuplicateJob();
      if (error) throw new Error(error);
      place.replaceChildren();
      await showDuplicates(place, values);
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
  }
  await load();
}

function card(group, pairs) {
  const medoid = group.members.find((row) => row.medoid);
  const differs = FACTS.map(([, text]) => new Set(group.members.map(text)).size > 1);
  const [title, hint] = KINDS[group.kind];
  const rows = group.members.map((row) => {
    const pair = row.medoid ? null : { query: medoid.id, reference: row.id, name: medoid.id,
      match: { reference: row.id, probability: row.probability, mark: row.mark, verdict: row.verdict, same_file: row.same_file, segments: [] } };
    if (pair) pairs.push(pair);
    const state = element("span", {});
    const refuse = async (event) => {
      try {
        await mark({ query: medoid.id, reference: row.id }, "not_a_match");
        event.target.remove();
        state.replaceChildren(element("span", { class: "badge not_a_match" }, "not a match"));
        say(`${row.id} is marked as not a match`);
      } catch (error) {
        state.replaceChildren(notice(error.message, "problem"));
      }
    };
    return element("tr", {},
      element("td", {}, picture(row.id, null, "")),
      element("td", { class: "name" },
        row.playable ? element("a", { href: media(row.id), target: "_blank", rel: "noopener" }, row.id) : row.id,
        row.keep && element("span", { class: "badge match" }, "keep"),
        row.mark && element("span", { class: `badge ${row.mark}` }, `marked: ${markNames[row.mark]}`),
        row.reason && element("span", { class: "quiet block" }, row.reason)),
      FACTS.map(([label, text], place) => differs[place]
        ? element("td", { class: "number differs", "data-label": label }, element("span", { title: "differs" }, "≠ ", text(row)))
        : element("td", { class: "number", "data-label": label }, text(row))),
      element("td", {}, row.probability !== undefined && chance(row),
        row.query_covered !== undefined && element("span", { class: "quiet block" },
          `covers ${percent(row.query_covered)} / ${percent(row.reference_covered)}`)),
      element("td", { class: "actions" }, pair && [
        element("a", { class: "button", href: pairAddress(pair) }, "Compare"),
        element("button", { type: "button", onclick: refuse, "aria-label": `${row.id} is not a match` }, "Not a match"), state]));
  });
  return element("section", { class: "card group" },
    element("h2", {}, `${title} `, element("span", { class: "quiet" }, `${hint} · ${group.members.length} videos · ${probability(group.probability)}`)),
    element("div", { class: "scroll" }, element("table", { class: "stack" },
      element("thead", {}, element("tr", {}, ["", "Video", ...FACTS.map(([text]) => text), "Verdict", ""].map((text) =>
        element("th", { scope: "col" }, text)))),
      element("tbody", {}, rows))));
}
