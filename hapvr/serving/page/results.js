// The ranked list of one search.

import { getExplanation, getTable, thumbnail, watchFor } from "./api.js";
import { chance, clock, element, markNames, middle, minute, notice, number, percent, span, verdictClass } from "./dom.js";
import { videoInput } from "./search.js";
import { answerOf, fileOf, keepPairs, pairAddress, unsaid } from "./session.js";

export async function showResults(place, values) {
  const id = values.get("job");
  const answer = await answerOf(id);
  const ofCollection = (answer.query_id ?? "") !== "";
  const pairs = answer.matches.map((match) => ({
    ...(ofCollection ? { query: answer.query_id } : { job: id }), reference: match.reference, match, name: answer.query,
  }));
  keepPairs(pairs, location.hash);

  const share = answer.prior === null ? "" : `, verdicts at precision ${answer.precision} where ` +
    `${(100 * answer.prior).toPrecision(3) * 1} % of the ${answer.prior_of === "pairs" ? "pairs match" : "searches have a match"}`;
  const best = answer.matches[0];
  place.append(
    element("div", { class: "asked" },
      queryPicture(ofCollection ? answer.query_id : "", fileOf(id), middle(best?.segments[0])[0]),
      element("div", {},
        element("h1", { class: "name" }, answer.query),
        element("p", { class: `headline ${verdictClass(best?.verdict)}` }, answer.headline[0].toUpperCase() + answer.headline.slice(1)),
        answer.incidents && element("p", {}, "Asked: which videos show the same incident, also from other cameras."),
        element("p", { class: "quiet" }, `${clock(answer.seconds)} long; compared with ${number(answer.compared)} of ` +
          `${number(answer.videos)} videos. Model ${answer.model}${answer.untrained ? ", untrained" : ""}${share}.`))),
    ...unsaid(answer.warnings).map((text) => notice(text)),
  );
  const list = (some) => element("ol", { class: "results" }, some.map((pair) => row(pair, ofCollection, id)));
  const [shown, folded] = [pairs.filter((pair) => !isTail(pair)), pairs.filter(isTail)];
  if (shown.length) place.append(list(shown));
  if (folded.length) place.append(element("details", { class: "tail" },
    element("summary", {}, `${number(folded.length)}${shown.length ? " more" : ""} that do not match`), list(folded)));
  place.append(missing(id), keep(id, answer), watch(id), element("p", {}, element("a", { href: "#/" }, "New search")));
}

// Why a video is shown or not: what `hapvr search --explain` says.
async function explain(job, reference, place) {
  place.replaceChildren(element("p", { class: "quiet" }, "Searching once more …"));
  try {
    const { lines } = await getExplanation(job, reference);
    const said = lines.slice(1).map((line) => [element("dt", {}, line.slice(0, 9).trim()), element("dd", {}, line.slice(9))]);
    place.replaceChildren(element("dl", { class: "why" }, said));
  } catch (error) {
    place.replaceChildren(notice(error.message, "problem"));
  }
}

function why(job, reference) {
  const said = element("div", { role: "status" });
  const opened = (event) => event.target.open && !said.querySelector("dl") && explain(job, reference, said);
  return element("details", { class: "explain", ontoggle: opened },
    element("summary", {}, "Why?", element("span", { class: "hidden" }, ` ${reference}`)), said);
}

function missing(job) {
  const [input, suggestions] = videoInput({ required: true });
  const said = element("div", { role: "status" });
  const asked = (event) => { event.preventDefault(); explain(job, input.value.trim(), said); };
  return element("details", { class: "keep" }, element("summary", {}, "Why was a video not found?"),
    element("form", { class: "card search", onsubmit: asked },
      element("label", { class: "field" }, element("span", {}, "A video of the collection"),
        element("div", { class: "row" }, input, element("button", { type: "submit" }, "Explain"))), suggestions, said));
}

// The query as a watch list: new videos are compared with it from now on.
function watch(id) {
  const state = element("div", { role: "status" });
  const begin = async (event) => {
    event.target.disabled = true;
    try {
      const { name } = await watchFor(id, fileOf(id)?.file);
      state.replaceChildren(element("p", { class: "quiet" }, `The whole clip is the watch list ${name} now. `,
        "`hapvr watch`, or the automation, compares the collection with it. ", element("a", { href: "#/watch" }, "Watch lists")));
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
      event.target.disabled = false;
    }
  };
  return element("div", { class: "watch" }, element("button", { type: "button", onclick: begin }, "Watch for this clip"), state);
}

// The answer for a file of the case: printed with who keeps it and why, or as a table.
function keep(id, answer) {
  const author = element("input", { type: "text", maxLength: 200 });
  const note = element("textarea", { rows: 2, maxLength: 2000 });
  const state = element("div", { role: "status" });
  const save = async () => {
    try {
      const address = URL.createObjectURL(await getTable(id, { author: author.value, note: note.value }));
      element("a", { href: address, download: `${answer.query.replace(/[^\w.-]+/g, "_")}.csv` }).click();
      URL.revokeObjectURL(address);
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
    }
  };
  return element("details", { class: "keep" }, element("summary", {}, "Keep this answer"),
    element("div", { class: "card search" },
      element("label", { class: "field" }, element("span", {}, "Author"), author),
      element("label", { class: "field" }, element("span", {}, "Note"), note),
      element("p", { class: "quiet" }, `${minute(new Date().toISOString())} UTC, model ${answer.model}`),
      element("div", { class: "row" },
        element("button", { type: "button", onclick: () => window.print() }, "Print, or save as PDF"),
        element("button", { type: "button", onclick: save }, "Save as CSV")),
      state));
}

const isTail = (pair) => pair.match.verdict === "no match";

// What was searched for: a picture of the collection, or of the browser's own file.
function queryPicture(id, file, second) {
  if (id) return picture(id, second, "the query");
  if (!file) return null;
  const shown = file.still
    ? element("img", { src: file.address, alt: "the query", width: 144, height: 81 })
    : element("video", { src: `${file.address}#t=${(second ?? 1).toFixed(2)}`, muted: true, preload: "auto", "aria-label": "the query",
                         width: 144, height: 81 });
  shown.addEventListener("error", () => shown.remove());
  return shown;
}

function row(pair, ofCollection, job) {
  const { match } = pair;
  const at = middle(match.segments[0]);
  return element("li", {}, element("a", { class: "card result", href: pairAddress(pair) },
    element("span", { class: "rank" }, number(match.rank)),
    element("span", { class: "pictures" },
      ofCollection && match.segments.length > 0 && picture(pair.query, at[0], `query at ${clock(at[0])}`),
      picture(match.reference, at[1], at[1] === null ? "" : `match at ${clock(at[1])}`)),
    element("span", { class: "what" },
      element("span", { class: "name" }, match.reference),
      match.offline && element("span", { class: "badge", title: "Its file is not where it was: its drive may be away" }, "offline"),
      match.mark && element("span", { class: `badge ${match.mark}` }, 
        `marked: ${markNames[match.mark]} by ${match.marked_by}, ${minute(match.marked_since)}`),
      element("span", { class: "parts quiet" },
        match.segments.length ? match.segments.slice(0, 3).map((part) => element("span", {}, span(part)))
          : element("span", {}, "no part could be aligned"),
        match.segments.length > 3 && element("span", {}, `and ${match.segments.length - 3} more`)),
      match.segments.length > 0 && match.query_covered !== null && element("span", { class: "quiet" },
        `covers ${percent(match.query_covered)} of the query, ${percent(match.reference_covered)} of the video`)),
    chance(match)), why(job, match.reference));
}

export function picture(id, second, label) {
  const image = element("img", { src: thumbnail(id, second), alt: label, loading: "lazy", width: 144, height: 81 });
  image.addEventListener("error", () => image.replaceWith(element("span", { class: "nopicture" }, "no picture")));
  return image;
}
