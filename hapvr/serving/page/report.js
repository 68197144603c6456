// One answer for a case file: what was asked, what was found, with pictures, times and places. It prints to PDF.

import { getCollection } from "./api.js";
import { element, middle, minute, percent } from "./dom.js";
import { picturePair } from "./pictures.js";
import { stateOf } from "./session.js";
import { covers, headline, isUnsure, judged, lookedAt, perhaps, readable, span, titleOf } from "./words.js";

export async function showReport(place, values) {
  const id = values.get("job");
  const [{ answer, still, places, since }, collection] = await Promise.all([stateOf(id), getCollection().catch(() => ({}))]);
  const { author = "", note = "" } = JSON.parse(sessionStorage.getItem(`report ${id}`) ?? "{}");
  const kind = { still, incidents: answer.incidents };
  const shown = answer.matches.filter((match) => match.verdict !== "no match");
  const facts = [
    ["Searched for", readable(answer.query)],
    ["Answer", headline(answer)],
    ["Looked at", lookedAt(answer, still)],
    ["Asked on", `${minute(since)} UTC`],
    ["Since then", collection.updated > since ? "the collection has changed; what is new was not looked at" : ""],
    ["Report made", `${minute(new Date().toISOString())} UTC`],
    ["Author", author],
    ["Note", note],
    ["Certain means", answer.precision === null ? "" : `at least ${percent(answer.precision)} of the videos that are called the same footage are`],
  ];
  place.append(element("article", { class: "report" },
    element("p", { class: "row noprint" },
      element("button", { type: "button", class: "main", onclick: () => window.print() }, "Print, or save as PDF"),
      element("a", { class: "button", href: `#/results?job=${encodeURIComponent(id)}` }, "Back to the answer")),
    element("h1", { class: "name" }, `Where was ${readable(answer.query)} seen?`),
    element("dl", { class: "facts" }, facts.filter(([, text]) => text).map(([name, text]) => [element("dt", {}, name), element("dd", { class: "name" }, text)])),
    shown.length ? "" : element("p", {}, "No video of the collection matches, and none is unsure."),
    shown.map((match) => element("section", { class: "card reported" },
      element("h2", { class: "name" }, titleOf(match.reference, places[match.reference]?.path)),
      element("p", {}, element("strong", {}, judged(match, kind)), isUnsure(match) && ": nobody has compared the two yet"),
      (match.segments.length ? match.segments.slice(0, still ? 1 : 6) : [null]).map((part) => element("div", { class: "proof" },
        picturePair(answer.query_id ? { query: answer.query_id } : { job: id }, match.reference, part ? middle(part) : [null, null], still),
        element("p", {}, part ? `${perhaps(match)}${span(part, still)}` : "alike as a whole; no part could be matched second by second"))),
      covers(match, still) && element("p", { class: "quiet" }, covers(match, still)),
      places[match.reference]?.path && element("p", { class: "quiet name" }, places[match.reference].path))),
    element("p", { class: "quiet" }, "Only pictures were compared, not sound. A match says that two files show the same footage; " +
      "it does not say which is the original, who filmed it, or whether it is authentic. " +
      `Compared by HAP-VR, ${answer.model}${answer.untrained ? " (untrained)" : ""}.`)));
  for (const image of place.querySelectorAll("img")) image.loading = "eager"; // a printed page is whole
}
