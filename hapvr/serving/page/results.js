// The answer of one search: what matches, what a person has to look at, and what does not match.

import { getTable, mayChange, queryThumbnail, watchFor } from "./api.js";
import { element, middle, minute, notice, number, percent, placeLine, verdictClass } from "./dom.js";
import { verdicts } from "./marks.js";
import { picture, picturePair, small } from "./pictures.js";
import { fileOf, goToUnsureByKey, keepPairs, pairAddress, rememberSearch, stateOf, unsaid, unsureAfter } from "./session.js";
import { missing, why } from "./why.js";
import { covers, headline, isUnsure, judged, lookedAt, noteOf, perhaps, readable, span, titleOf, toDo } from "./words.js";

export async function showResults(place, values) {
  const id = values.get("job");
  let state = await stateOf(id);
  const { answer } = state;
  const ofCollection = (answer.query_id ?? "") !== "";
  const line = element("p", {});
  const lists = element("div", {});
  const problems = element("div", { role: "status" });
  place.append(
    element("div", { class: "asked" },
      queryPicture(ofCollection ? answer.query_id : "", id, middle(answer.matches[0]?.segments[0])[0]),
      element("div", {},
        element("h1", { class: "name" }, readable(answer.query)), line,
        answer.incidents && element("p", {}, "Asked: which videos show the same incident, also from other cameras."),
        element("p", { class: "quiet" }, `${lookedAt(answer, state.still)} Asked on ${minute(state.since)} UTC.`), basis(answer))),
    ...unsaid(answer.warnings).map((text) => notice(text.replaceAll("`", ""))), problems, lists,
    missing(id), keep(id, answer, state.still), mayChange() ? watch(id) : "", element("p", {}, element("a", { href: "#/" }, "New search")));

  async function refresh(reference = "") {
    state = await stateOf(id).catch((error) => {
      problems.replaceChildren(notice(error.message, "problem"));
      return state;
    });
    show();
    if (reference) [...lists.querySelectorAll(".open")].find((link) => link.dataset.reference === reference)?.focus();
  }

  function show() {
    const shown = state.answer;
    const kind = { still: state.still, incidents: shown.incidents };
    const pairs = shown.matches.map((match) => ({
      ...(ofCollection ? { query: shown.query_id } : { job: id }), reference: match.reference, match, name: shown.query, still: state.still,
      path: state.places[match.reference]?.path,
    }));
    const unsure = pairs.filter((pair) => isUnsure(pair.match));
    const folded = pairs.filter((pair) => pair.match.verdict === "no match");
    const others = pairs.filter((pair) => !unsure.includes(pair) && !folded.includes(pair));
    keepPairs([...others, ...unsure, ...folded], location.hash);
    const best = others.some((pair) => pair.match.verdict === "match") ? "match" : unsure.length ? "unsure" : "no match";
    line.className = `headline ${verdictClass(best)}`;
    line.textContent = headline(shown);
    rememberSearch({ job: id, query: shown.query, id: shown.query_id ?? "", headline: headline(shown), since: state.since });
    const list = (some) => element("ol", { class: "results" }, some.map((pair) => row(pair, id, kind, refresh)));
    lists.replaceChildren(
      others.length ? list(others) : "",
      unsure.length ? element("section", { class: "unsure" },
        element("h2", {}, `Unsure: ${unsure.length === 1 ? "1 video" : `${unsure.length} videos`} to look at`),
        element("p", { class: "quiet" }, toDo(), " ",
          element("a", { class: "button", href: unsureAfter(-1), title: "key u" }, "Go through them")), list(unsure)) : "",
      folded.length ? element("details", { class: "tail" },
        element("summary", {}, `${number(folded.length)}${others.length + unsure.length ? " more" : ""} that do not match`), list(folded)) : "");
    if (!pairs.length) lists.replaceChildren(element("p", { class: "card empty" },
      "No video of the collection could be compared. Look at fewer conditions under Options, or add videos."));
  }
  show();

  return goToUnsureByKey();
}

// What a verdict rests on, for those who want to know.
function basis(answer) {
  const share = answer.prior === null ? "" : `${(100 * answer.prior).toPrecision(3) * 1} % of the ${answer.prior_of === "pairs" ? "pairs match" : "searches have a match"}`;
  const facts = [
    ["Model", `${answer.model}${answer.untrained ? ", untrained" : ""}`],
    ["Match", answer.precision === null ? "not said by this model" : `at least ${percent(answer.precision)} of the videos that are called a match are one (precision ${answer.precision})`],
    ["Prior", share && `probabilities hold where ${share}`],
    ["Similarity", answer.matches.slice(0, 3).map((match) => `${match.similarity >= 0 ? "+" : ""}${match.similarity.toFixed(3)}`).join(", ")],
  ];
  return element("details", { class: "basis" }, element("summary", {}, "How sure is this?"),
    element("dl", { class: "why" }, facts.filter(([, text]) => text).map(([name, text]) => [element("dt", {}, name), element("dd", {}, text)])),
    element("p", {}, element("a", { href: "#/help" }, "What the numbers mean, and what an answer cannot say")));
}

// The query as a watch list: the archive is compared with it now, and new videos from then on.
function watch(id) {
  const state = element("div", { role: "status" });
  const begin = async (event) => {
    event.target.disabled = true;
    try {
      await watchFor(id, fileOf(id)?.file);
      state.replaceChildren(element("p", { class: "quiet" }, "The whole clip is a watch list now. The archive is being compared with it, " +
        "and so is every video that comes later. ", element("a", { href: "#/watch" }, "Watch lists")));
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
      event.target.disabled = false;
    }
  };
  return element("div", { class: "watch" }, element("button", { type: "button", onclick: begin }, "Watch for this clip"), state);
}

// The answer for a file of the case: a report with pictures, or a table.
function keep(id, answer, still) {
  const author = element("input", { type: "text", maxLength: 200 });
  const note = element("textarea", { rows: 2, maxLength: 2000 });
  const state = element("div", { role: "status" });
  const save = async () => {
    try {
      const address = URL.createObjectURL(await getTable(id, { author: author.value, note: note.value }));
      element("a", { href: address, download: fileName(answer.query, "csv") }).click();
      URL.revokeObjectURL(address);
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
  };
  const report = () => {
    sessionStorage.setItem(`report ${id}`, JSON.stringify({ author: author.value, note: note.value }));
    location.hash = `#/report?${new URLSearchParams({ job: id })}`;
  };
  return element("details", { class: "keep" }, element("summary", {}, "Keep this answer"),
    element("div", { class: "card search" },
      element("label", { class: "field" }, element("span", {}, "Author"), author),
      element("label", { class: "field" }, element("span", {}, "Note"), note),
      element("p", { class: "quiet" }, `${minute(new Date().toISOString())} UTC${still ? ", of a picture" : ""}`),
      element("div", { class: "row" },
        element("button", { type: "button", onclick: report }, "Report with pictures"),
        element("button", { type: "button", onclick: save }, "Save as CSV")),
      state));
}

// E.g. "matches of my clip 2026-11-28.csv".
export function fileName(query, suffix) {
  const base = readable(query).split("/").at(-1).replace(/\.[^.]*$/, "").replace(/[^\p{L}\p{N} ._-]+/gu, "_").slice(0, 60).trim();
  return `matches of ${base || "query"} ${new Date().toISOString().slice(0, 10)}.${suffix}`;
}

// What was searched for: a picture of the collection, of the browser's own file, or of what the service keeps of it.
function queryPicture(id, job, second) {
  if (id) return picture(id, second, "the query");
  const file = fileOf(job);
  if (!file) return small(queryThumbnail(job, second, 640), "the query");
  const shown = file.still
    ? element("img", { src: file.address, alt: "the query", width: 144, height: 81 })
    : element("video", { src: `${file.address}#t=${(second ?? 1).toFixed(2)}`, muted: true, preload: "auto", "aria-label": "the query",
                         width: 144, height: 81 });
  shown.addEventListener("error", () => shown.remove());
  return shown;
}

function row(pair, job, kind, refresh) {
  const { match } = pair;
  const title = titleOf(match.reference, pair.path);
  const state = element("div", { role: "status" });
  const { buttons } = verdicts({ ...(pair.query ? { query: pair.query } : { job }), reference: match.reference }, { ...match }, state,
    { label: title, changed: () => refresh(match.reference) });
  const part = match.segments[0];
  return element("li", { class: `card result ${verdictClass(match.verdict)}` },
    picturePair(pair.query ? { query: pair.query } : { job }, match.reference, part ? middle(part) : [null, null], kind.still),
    element("div", { class: "what" },
      element("a", { class: "open name", href: pairAddress(pair), "data-reference": match.reference }, title),
      element("strong", { class: `said ${verdictClass(match.verdict)}` }, judged(match, kind)),
      match.segments.slice(0, kind.still ? 1 : 3).map((each) => element("span", { class: noteOf(each) ? "part noted" : "part" }, perhaps(match), span(each, kind.still))),
      match.segments.length > 3 && !kind.still && element("span", { class: "quiet" }, `and ${match.segments.length - 3} more parts`),
      !part && element("span", { class: "quiet" }, "alike as a whole; no part could be matched second by second"),
      covers(match, kind.still) && element("span", { class: "quiet" }, covers(match, kind.still)),
      match.inner_picture && element("span", { class: "quiet" }, "in a part of the picture"),
      match.offline && element("span", { class: "badge", title: "Its file is not where it was: its drive may be away" }, "offline"),
      placeLine(pair.path), why(job, match, kind)),
    element("div", { class: "actions" },
      element("a", { class: "button", href: pairAddress(pair), "aria-label": `Compare with ${title}` }, "Compare"), buttons, state));
}
