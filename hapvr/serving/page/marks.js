// What people say about pairs: the buttons, and the list of everything that was said.

import { get, mark } from "./api.js";
import { element, markNames, notice, say } from "./dom.js";

// Buttons for a verdict on a pair; a second press takes it back. Errors are shown in `state`; `decide` is for keys.
export function verdicts(pair, match, state, label = "") {
  let current = null;
  const buttons = Object.entries(markNames).map(([verdict, text]) => element("button", {
    type: "button", class: `verdict ${verdict}`, "aria-label": label ? `${label}: ${text}` : null, onclick: () => decide(verdict),
  }, text[0].toUpperCase() + text.slice(1)));
  function show(verdict) {
    current = verdict || null;
    Object.keys(markNames).forEach((name, place) => buttons[place].setAttribute("aria-pressed", String(name === current)));
  }
  async function decide(verdict) {
    const wanted = verdict === current ? null : verdict;
    try {
      await mark(pair, wanted);
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
      return;
    }
    show(wanted);
    if (match) match.mark = wanted ?? "";
    say(wanted ? `Marked as ${markNames[wanted]}` : "The mark was taken back");
  }
  show(match?.mark);
  return { buttons, decide, show };
}

export async function showMarks(place) {
  const { marks } = await get("pairs");
  place.append(element("h1", {}, "Marks"), element("p", { class: "quiet" },
    "Marks are kept by the content of the files. Searches and duplicates leave out what does not match, and keep what matches."));
  if (!marks.length) {
    place.append(element("p", { class: "card empty" }, "No pair is marked."));
    return;
  }
  const state = element("div", { role: "status" });
  const body = element("tbody", {}, marks.toReversed().map((row) => {
    const line = element("tr", {},
      element("td", {}, element("span", { class: `badge ${row.verdict}` }, markNames[row.verdict])),
      element("td", { class: "name" }, row.names[0]), element("td", { class: "name" }, row.names[1]),
      element("td", { class: "quiet" }, row.since.slice(0, 16).replace("T", " ")),
      element("td", {}, element("button", { type: "button", onclick: take,
        "aria-label": `Take back: ${row.names[0]} and ${row.names[1]}` }, "Take back")));
    async function take() {
      try {
        await mark({ query: row.first, reference: row.second }, null);
        line.remove();
        say("The mark was taken back");
      } catch (error) {
        state.replaceChildren(notice(error.message, "problem"));
      }
    }
    return line;
  }));
  place.append(state, element("div", { class: "card scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ["Said", "Video", "Video", "Since (UTC)", ""].map((text) => element("th", { scope: "col" }, text)))),
    body)));
}
