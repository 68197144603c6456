// The watch lists: what each watches for, when it was compared last, and what was found, the newest first.

import { get, getWatchRun, mayChange, plain, removeWatchList, runWatchLists, search, watchThumbnail } from "./api.js";
import { element, middle, minute, notice, number, placeLine, say, verdictClass } from "./dom.js";
import { verdicts } from "./marks.js";
import { picturePair, small } from "./pictures.js";
import { keepJob, keepPairs, pairAddress } from "./session.js";
import { clockNote, covers, isUnsure, judged, perhaps, readable, span, titleOf, toDo } from "./words.js";

const PIECE = 50;
const AGAIN_MS = 1000;

export async function showWatch(place, values) {
  const chosen = values.get("watch_list") ?? "";
  const state = element("div", { role: "status" });
  const lists = element("div", { class: "lists" });
  const count = element("p", { class: "quiet", role: "status" });
  const list = element("ol", { class: "results" });
  const more = element("button", { type: "button", class: "main", onclick: () => load() }, "Show more");
  place.append(element("h1", {}, "Watch lists"), lists, state, count, list, element("p", {}, more));
  const pairs = [];
  let shown = 0;

  async function load() {
    more.disabled = true;
    try {
      const found = await get("watch", { watch_list: chosen, limit: PIECE, offset: shown });
      shown += found.matches.length;
      showLists(found);
      count.textContent = found.total ? `${found.total === 1 ? "1 find" : `${number(shown)} of ${number(found.total)} finds`}${chosen ? ` of the list ${chosen}` : ""}` : found.lists.length
        ? "Nothing found so far. Videos that come later are compared, too." : "There is no watch list yet. Search for a clip, then press “Watch for this clip” below the answer.";
      list.append(...found.matches.map((match) => row(match, pairs, state, again)));
      keepPairs(pairs, location.hash);
      more.hidden = shown >= found.total;
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
    more.disabled = false;
  }

  async function again() {
    shown = 0;
    pairs.length = 0;
    list.replaceChildren();
    await load();
  }

  function showLists(found) {
    const run = mayChange() && element("button", { type: "button", onclick: () => follow(runWatchLists) }, "Compare now");
    const all = chosen && element("a", { class: "button", href: "#/watch" }, "Show all lists");
    lists.replaceChildren(found.lists.length ? element("section", { class: "card" },
      element("p", { class: "row" }, found.last_run ? `Compared last on ${minute(found.last_run)} UTC.` : "Not compared yet.", run, all),
      element("ul", { class: "watched" }, found.lists.map((each) => watched(each, remove)))) : "");
  }

  async function remove(name) {
    if (!window.confirm(`Remove the watch list ${name}? Its copy of the clip is deleted; the finds go with it.`)) return;
    try {
      await removeWatchList(name);
      say(`${name} was removed`);
      if (chosen === name) location.hash = "#/watch";
      else await again();
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
  }

  // How far comparing is; the finds again at its end.
  async function follow(begin) {
    const words = element("span", {}, "Comparing with the archive …");
    state.replaceChildren(element("p", { class: "state" }, words, element("progress", { "aria-label": "progress of the comparison" })));
    try {
      for (let job = await begin(); job.running; job = await getWatchRun()) {
        if (!place.isConnected) return;
        await new Promise((next) => setTimeout(next, AGAIN_MS));
      }
      const { error } = await getWatchRun();
      state.replaceChildren(error ? notice(plain({ error }), "problem") : "");
      await again();
      say("The comparison has ended");
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
  }

  await load();
  const job = await getWatchRun().catch(() => ({}));
  if (job.running) follow(() => job);
  else if (job.error) state.replaceChildren(notice(plain(job), "problem"));
}

// One list: pictures of what it watches for, how much it found, and the way to end it.
function watched(list, remove) {
  return element("li", { class: "row" },
    element("span", { class: "pictures" }, list.queries.map((sha256) => small(watchThumbnail(sha256), `a clip of ${list.name}`))),
    element("span", { class: "what" },
      element("a", { class: "name", href: `#/watch?${new URLSearchParams({ watch_list: list.name })}` }, list.name),
      element("span", { class: "quiet" }, list.problem ? plain({ error: list.problem })
        : `${list.num_queries === 1 ? "1 clip" : `${number(list.num_queries)} clips`}, ${list.matches === 1 ? "1 find" : `${number(list.matches)} finds`}`)),
    list.removable ? mayChange() && element("button", { type: "button", "aria-label": `Remove ${list.name}`, onclick: () => remove(list.name) }, "Remove")
      : element("span", { class: "quiet" }, "from the configuration"));
}

function row(found, pairs, state, again) {
  const part = found.query_start_s === null ? undefined
    : { query_start_s: found.query_start_s, query_end_s: found.query_end_s,
        reference_start_s: found.video_start_s, reference_end_s: found.video_end_s };
  const match = { ...found, reference: found.video_id, reference_covered: found.video_covered, segments: part ? [part] : [] };
  const title = titleOf(match.reference, found.path);
  const pair = { query: match.query_id, reference: match.reference, name: match.query, match, path: found.path };
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
  const list = `list ${match.watch_list}${match.query.includes(match.query_sha256) ? "" : `, clip ${readable(match.query)}`}`;
  return element("li", { class: `card result ${verdictClass(match.verdict)}` },
    picturePair(match.query_id ? { query: match.query_id } : { sha256: match.query_sha256 }, match.reference, middle(part)),
    element("div", { class: "what" },
      element("span", { class: "name" }, title),
      element("strong", { class: `said ${verdictClass(match.verdict)}` }, judged(match)),
      isUnsure(match) && element("span", {}, toDo()),
      element("span", { class: "part" }, part ? `${perhaps(match)}${span(part)}` : "alike as a whole; no part could be matched second by second"),
      covers(match) && element("span", { class: "quiet" }, covers(match)),
      found.clock_note && element("span", { class: "quiet" }, clockNote(found)),
      element("span", { class: "quiet name" }, `${list}; found ${minute(match.since) || "–"} UTC`), placeLine(found.path)),
    element("div", { class: "actions" }, match.query_id
      ? element("a", { class: "button", href: pairAddress(pair) }, "Compare")
      : element("button", { type: "button", onclick: compare }, "Compare"), said,
    verdicts(marked, match, state, { label: `${readable(match.query)} and ${title}`, changed: again }).buttons));
}
