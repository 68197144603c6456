// What the watch lists have found, the newest first.

import { get, search } from "./api.js";
import { chance, clock, element, middle, minute, notice, number, percent, span } from "./dom.js";
import { verdicts } from "./marks.js";
import { picture } from "./results.js";
import { keepJob, keepPairs, pairAddress } from "./session.js";

const PIECE = 50;

export async function showWatch(place, values) {
  const chosen = values.get("watch_list") ?? "";
  const lists = element("select", { name: "watch_list" });
  lists.addEventListener("change", () => { location.hash = `#/watch?${new URLSearchParams({ watch_list: lists.value })}`; });
  const count = element("p", { class: "quiet", role: "status" });
  const body = element("tbody");
  const table = element("div", { class: "card scroll" }, element("table", { class: "stack" },
    element("thead", {}, element("tr", {}, ["Found (UTC)", "", "Video", "Query", "Probability", ""].map((text) =>
      element("th", { scope: "col" }, text)))), body));
  const more = element("button", { type: "button", class: "main", onclick: () => load() }, "Show more");
  const state = element("div", { role: "status" });
  place.append(element("h1", {}, "Watch lists"), element("form", { class: "filters card" },
    element("label", { class: "field" }, element("span", {}, "List"), lists)), count, table, state, element("p", {}, more));
  const pairs = [];
  let shown = 0;

  async function load() {
    more.disabled = true;
    const found = await get("watch", { watch_list: chosen, limit: PIECE, offset: shown });
    shown += found.matches.length;
    lists.replaceChildren(...["", ...found.lists].map((name) =>
      element("option", { value: name, selected: name === chosen }, name || "All")));
    count.textContent = found.total ? `${number(shown)} of ${number(found.total)} matches` : found.lists.length
      ? "Nothing found so far. `hapvr watch` compares new videos with the lists." : "There is no watch list yet. Press \"Watch for this clip\" below an answer, or name a folder of queries under watch.lists in the configuration.";
    table.hidden = !found.total;
    body.append(...found.matches.map((match) => row(match, pairs, state)));
    keepPairs(pairs, location.hash);
    more.disabled = false;
    more.hidden = shown >= found.total;
  }
  await load();
}

function row(found, pairs, state) {
  const part = found.query_start_s === null ? undefined
    : { query_start_s: found.query_start_s, query_end_s: found.query_end_s,
        reference_start_s: found.video_start_s, reference_end_s: found.video_end_s };
  const match = { ...found, reference: found.video_id, reference_covered: found.video_covered, segments: part ? [part] : [] };
  const [, second] = middle(part);
  const pair = { query: match.query_id, reference: match.reference, name: match.query, match };
  if (match.query_id) pairs.push(pair);
  const said = element("span", {});
  const marked = { query: match.query_sha256, name: match.query, reference: match.reference };
  // A query outside of the collection is searched for again: the pair view needs its frames.
  async function compare(event) {
    event.target.disabled = true;
    said.textContent = " searching …";
    try {
      const job = await search({ path: match.query }, { progress: () => {}, signal: new AbortController().signal });
      keepJob(job);
      location.hash = pairAddress({ job: job.job, reference: match.reference });
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
      event.target.disabled = false;
      said.textContent = "";
    }
  }
  return element("tr", {},
    element("td", { class: "quiet", "data-label": "Found (UTC)" }, minute(match.since) || "–"),
    element("td", {}, picture(match.reference, second, second === null ? "" : `match at ${clock(second)}`)),
    element("td", { class: "name" }, match.reference,
      element("span", { class: "quiet block" }, part ? span(part) : "no part could be aligned"),
      part && match.query_covered !== null && element("span", { class: "quiet block" },
        `covers ${percent(match.query_covered)} of the query, ${percent(match.reference_covered)} of the video`)),
    element("td", { class: "name", "data-label": "Query" }, match.query, element("span", { class: "quiet block" }, `list ${match.watch_list}`)),
    element("td", {}, chance(match)),
    element("td", { class: "actions" }, match.query_id
      ? element("a", { class: "button", href: pairAddress(pair) }, "Compare")
      : element("button", { type: "button", onclick: compare }, "Compare"), said, verdicts(marked, match, state, `${match.query} and ${match.reference}`).buttons));
}
