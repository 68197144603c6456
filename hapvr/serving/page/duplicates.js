// Groups of copies and pairs of other kinds: those that are certain, and those that a person has to look at.

import { get, getDuplicateJob, getPlan, mayChange, maySeePaths, media, startDuplicateJob } from "./api.js";
import { bytes, clock, element, headRow, notice, number, percent, placeLine, scrollable, verdictClass } from "./dom.js";
import { verdicts } from "./marks.js";
import { picture } from "./pictures.js";
import { goToUnsureByKey, keepPairs, pairAddress, unsureAfter } from "./session.js";
import { clockNote, isUnsure, judged, titleOf, toDo } from "./words.js";

const PIECE = 50;
const LEAST_PROBABILITY = 0.5; // of what is kept to be looked at
const KINDS = {
  copy: ["Copies", "each shows at least 80 % of the other"],
  contained: ["Contained", "one is shown almost whole in the other"],
  overlap: ["Overlap", "parts are the same"],
  same_incident: ["Same incident", "alike, but no stretch could be matched second by second"],
};
const FACTS = [
  ["Size", (row) => row.width_px ? `${row.width_px} × ${row.height_px}` : "–"],
  ["Codec", (row) => row.codec || "–"],
  ["Length", (row) => row.duration_s === null ? "–" : clock(Math.round(row.duration_s))],
  ["File", (row) => row.num_bytes ? bytes(row.num_bytes) : "–"],
];
const SECTIONS = {
  certain: ["Certain", () => "The program is sure that these show the same footage."],
  unsure: ["Unsure", toDo],
};

export async function showDuplicates(place, values) {
  const chosen = (name) => values.get(name) ?? "";
  const select = (name, options) => element("select", { name }, options.map(([value, text]) =>
    element("option", { value, selected: value === chosen(name) }, text)));
  const form = element("form", { class: "filters card" },
    element("label", { class: "field" }, element("span", {}, "Kind"),
      select("kind", [["", "All"], ...Object.entries(KINDS).map(([value, [text]]) => [value, text])])),
    element("label", { class: "field" }, element("span", {}, "Folder"),
      element("input", { name: "folder", type: "text", value: chosen("folder"), placeholder: "source/folder", spellcheck: false })),
    element("button", { type: "submit" }, "Filter"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const given = [...new FormData(form)].filter(([, value]) => value !== "");
    location.hash = `#/duplicates?${new URLSearchParams(given)}`;
  });
  form.addEventListener("change", (event) => { if (event.target.matches("select")) form.requestSubmit(); });

  const state = element("div", { role: "status" });
  place.append(element("h1", {}, "Duplicates"), form, mayChange() ? plans(state) : "", state);
  const filters = Object.fromEntries(["kind", "folder"].map((name) => [name, chosen(name)]));
  const pairs = { certain: [], unsure: [] };
  const sections = Object.keys(SECTIONS).map((surety) => section(surety));

  // One of the two lists, a piece at a time.
  function section(surety) {
    const [title, hint] = SECTIONS[surety];
    const count = element("span", { class: "quiet" });
    const list = element("div", { class: "groups" });
    const more = element("button", { type: "button", class: "main", onclick: () => load() }, "Show more");
    const queue = element("p", {});
    place.append(element("section", { class: `duplicates ${surety}` },
      element("h2", {}, title, " ", count), element("p", { class: "quiet" }, hint()), queue, list, element("p", {}, more)));
    let shown = 0;

    async function load() {
      more.disabled = true;
      try {
        const given = { ...filters, surety, min_probability: surety === "unsure" ? LEAST_PROBABILITY : 0.9 };
        const found = await get("duplicates", { ...given, limit: PIECE, offset: shown });
        shown += found.groups.length;
        more.hidden = shown >= found.total;
        count.textContent = shown < found.total ? `${number(shown)} of ${number(found.total)}` : number(found.total);
        list.append(...found.groups.map((group) => card(group, pairs[surety], reload)));
        if (!found.total) list.replaceChildren(element("p", { class: "card empty" },
          surety === "unsure" ? "Nothing to decide." : "No two videos show the same footage for certain."));
        keepPairs([...pairs.certain, ...pairs.unsure], location.hash);
        const next = unsureAfter(-1);
        queue.replaceChildren(surety === "unsure" && next ? element("a", { class: "button", href: next, title: "key u" }, "Go through them") : "");
        return found;
      } catch (error) {
        state.replaceChildren(notice(error.message, "problem"));
        return null;
      } finally {
        more.disabled = false;
      }
    }
    async function again() {
      shown = 0;
      pairs[surety].length = 0;
      list.replaceChildren();
      return load();
    }
    return { load, again };
  }

  // After a mark: groups and their probabilities are others now.
  async function reload() {
    for (const each of sections) await each.again();
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

  let found = null;
  for (const each of sections) found = await each.load() ?? found;
  if (found && found.shards_searched < found.shards) {
    state.replaceChildren(notice(`${found.shards_searched ? "Some videos of this collection have" : "This collection has"} not been looked ` +
      "through for duplicates yet."), mayChange() ? element("p", {}, element("button", { type: "button", class: "main",
      onclick: () => follow(startDuplicateJob) }, "Look through them now")) : "");
    getDuplicateJob().then((job) => job.running && follow(() => job)).catch(() => null);
  }

  return goToUnsureByKey();
}

// What could be done about all copies, to be looked at elsewhere.
function plans(state) {
  if (!maySeePaths()) return element("p", { class: "quiet" }, "A plan of what to keep says where files are, which this service does not show. " +
    "Whoever runs it makes one on its machine: hapvr duplicates --plan plan.sh");
  const save = async (form) => {
    try {
      const address = URL.createObjectURL(await getPlan(form));
      element("a", { href: address, download: `plan for copies ${new Date().toISOString().slice(0, 10)}.${form}` }).click();
      URL.revokeObjectURL(address);
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
  };
  return element("p", { class: "row" },
    element("button", { type: "button", onclick: () => save("csv") }, "Save as CSV"),
    element("button", { type: "button", onclick: () => save("sh") }, "Save as a script"),
    element("span", { class: "quiet" }, "what could be kept, linked or moved aside; no file changes before somebody runs the script with --act"));
}

function card(group, pairs, reload) {
  const medoid = group.members.find((row) => row.medoid);
  const differs = FACTS.map(([, text]) => new Set(group.members.map(text)).size > 1);
  const [title, hint] = KINDS[group.kind];
  const reasons = new Set(group.members.map((row) => row.reason));
  const common = reasons.size === 1 && [...reasons][0]; // one reason for all is said once
  const told = common ? { ...medoid, reason: "" } : medoid;
  const others = group.members.filter((row) => !row.medoid).map((row) => common ? { ...row, reason: "" } : row);
  return element("section", { class: "card group" },
    element("h3", {}, `${title} `, element("span", { class: "quiet" }, `${hint} · ${group.members.length} videos`)),
    common && element("p", { class: "quiet" }, common.replaceAll("`", "")),
    scrollable(`${title}: ${titleOf(medoid.id, medoid.path)} and others`, element("table", { class: "stack" },
      headRow(["Picture", "Video", ...FACTS.map(([text]) => text), "Compared with the first", "Actions"], ["Picture", "Actions"]),
      element("tbody", {}, [told, ...others].map((row) =>
        member(row, medoid, { differs, pairs, reload, kind: group.kind }))))));
}

function member(row, medoid, { differs, pairs, reload, kind }) {
  const name = titleOf(row.id, row.path);
  const pair = row.medoid ? null : { query: medoid.id, reference: row.id, name: medoid.id, path: row.path,
    match: { reference: row.id, probability: row.probability, mark: row.mark, verdict: row.verdict, same_file: row.same_file, segments: [],
             aligned: kind !== "same_incident" } };
  if (pair) pairs.push(pair);
  const state = element("span", {});
  return element("tr", {},
    element("td", {}, picture(row.id, null, "")),
    element("td", { class: "name" },
      row.playable ? element("a", { href: media(row.id), target: "_blank", rel: "noopener" }, name) : name,
      row.keep && element("span", { class: "badge match" }, "keep"),
      row.reason && element("span", { class: "quiet block" }, row.reason.replaceAll("`", "")),
      row.clock_note && element("span", { class: "quiet block" }, clockNote(row)), placeLine(row.path, { compact: true })),
    FACTS.map(([label, text], place) => differs[place]
      ? element("td", { class: "number differs", "data-label": label }, element("span", { title: "differs" }, "≠ ", text(row)))
      : element("td", { class: "number", "data-label": label }, text(row))),
    element("td", {}, pair && element("strong", { class: `said ${isUnsure(pair.match) ? "unsure" : verdictClass(row.verdict)}` }, judged(pair.match)),
      row.query_covered !== undefined && row.query_covered !== null && element("span", { class: "quiet block" },
        `${percent(row.query_covered)} of the first, ${percent(row.reference_covered)} of this one`)),
    element("td", { class: "actions" }, pair && element("div", { class: "column" },
      element("a", { class: "button", href: pairAddress(pair), "aria-label": `Compare ${name}` }, "Compare"),
      verdicts({ query: medoid.id, reference: row.id }, pair.match, state, { label: name, changed: reload }).buttons, state)));
}
