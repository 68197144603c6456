// Why a video is shown or not: in three sentences, with all numbers behind them.

import { getExplanation } from "./api.js";
import { element, notice } from "./dom.js";
import { videoInput } from "./search.js";
import { whySentences } from "./words.js";

// All that the search found of a video, as `hapvr search --explain` prints it.
async function numbers(job, reference, place) {
  place.replaceChildren(element("p", { class: "quiet" }, "Searching once more …"));
  try {
    const { lines } = await getExplanation(job, reference);
    const rows = lines.slice(1).map((line) => [element("dt", {}, line.slice(0, 9).trim()), element("dd", {}, line.slice(9))]);
    place.replaceChildren(element("dl", { class: "why" }, rows));
  } catch (error) {
    place.replaceChildren(notice(error.message, "problem"));
  }
}

function allNumbers(job, reference) {
  const place = element("div", { role: "status" });
  const opened = (event) => event.target.open && !place.querySelector("dl") && numbers(job, reference, place);
  return element("details", { class: "numbers", ontoggle: opened }, element("summary", {}, "All numbers"), place);
}

export function why(job, match, kind) {
  return element("details", { class: "explain" },
    element("summary", {}, "Why?", element("span", { class: "hidden" }, ` ${match.reference}`)),
    whySentences(match, kind).map((sentence) => element("p", {}, sentence)), allNumbers(job, match.reference));
}

// A form that says why a video of the collection, or a file of its folders, was not found.
export function missing(job) {
  const [input, suggestions] = videoInput({ required: true });
  const place = element("div", { role: "status" });
  const asked = async (event) => {
    event.preventDefault();
    const reference = input.value.trim();
    place.replaceChildren(element("p", { class: "quiet" }, "Searching once more …"));
    try {
      const { reason, lines } = await getExplanation(job, reference);
      place.replaceChildren(element("p", {}, reason), lines.length ? allNumbers(job, reference) : "");
    } catch (error) {
      place.replaceChildren(notice(error.message, "problem"));
    }
  };
  return element("details", { class: "keep" }, element("summary", {}, "Why was a video not found?"),
    element("form", { class: "card search", onsubmit: asked },
      element("label", { class: "field" }, element("span", {}, "A video of the collection, or the name of a file"),
        element("div", { class: "row" }, input, element("button", { type: "submit" }, "Explain"))), suggestions, place));
}
