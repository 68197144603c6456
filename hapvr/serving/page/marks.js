// What people say about pairs: the buttons, and the list of everything that was said.

import { get, mark, mayChange } from "./api.js";
import { copyButton, element, headRow, markNames, minute, notice, say, scrollable, tell } from "./dom.js";
import { readable } from "./words.js";
import { keepPairs, pairAddress } from "./session.js";

// What is said of a pair whose row is made anew: {pair, text, place: where it is said}.
let told = null;

const same = (one, other) => ["query", "job", "reference"].every((name) => one[name] === other[name]);

// Buttons for a verdict on a pair; a second press takes it back. Errors are shown in `state`; `decide` is for keys.
// changed(verdict or null) is called once a mark is kept; reload() where others have said something else meanwhile.
export function verdicts(pair, match, state, { label = "", changed = () => null, reload = changed } = {}) {
  let current = null;
  const buttons = !mayChange() ? [] : Object.entries(markNames).map(([verdict, text]) => element("button", {
    type: "button", class: `verdict ${verdict}`, "aria-label": label ? `${label}: ${text}` : null, onclick: () => decide(verdict),
  }, text[0].toUpperCase() + text.slice(1)));
  function show(verdict) {
    current = verdict || null;
    Object.keys(markNames).forEach((name, place) => buttons[place]?.setAttribute("aria-pressed", String(name === current)));
  }
  async function decide(verdict) {
    if (!mayChange()) return;
    const wanted = verdict === current ? null : verdict;
    try {
      await mark(pair, wanted, current ?? "");
    } catch (error) {
      state.replaceChildren(notice(error.message, "problem"));
      if (error.code === "marked_meanwhile") await reloadAndTell(error.message);
      return;
    }
    state.replaceChildren();
    show(wanted);
    if (match) remember(match, wanted);
    say(wanted ? `Marked as ${markNames[wanted]}` : "The mark was taken back");
    await changed(wanted);
  }
  // The row shows what others have said, and why it is another one now; where it is gone or folded, the page's head says it.
  async function reloadAndTell(text) {
    told = { pair, text, place: state };
    await reload();
    if (told.place.checkVisibility()) say(text);
    else tell(text);
    told = null;
  }
  show(match?.mark);
  if (told && same(told.pair, pair)) {
    state.replaceChildren(notice(told.text));
    told.place = state;
  }
  return { buttons, decide, show };
}

// What a mark makes of a match that is shown: its verdict is the mark's until that is taken back.
export function remember(match, mark) {
  match.unmarked ??= match.mark ? (match.same_file ? "match" : ofProbability(match.probability)) : match.verdict;
  match.mark = mark ?? "";
  match.marked_by = "";
  match.marked_since = "";
  match.verdict = mark ? { match: "match", not_a_match: "no match" }[mark] : match.unmarked;
}

// As `verdict_of` of the service.
const ofProbability = (value) => value === null || value === undefined ? null : value >= 0.95 ? "match" : value <= 0.05 ? "no match" : "unsure";

export async function showMarks(place) {
  await listMarks(place);
}

// said: what happened to the list just before.
async function listMarks(place, said = "") {
  const { marks } = await get("pairs");
  const by = (name) => name === "local user" ? "you, or whoever uses this computer" : name;
  place.append(element("h1", {}, "Marks"), element("p", { class: "quiet" },
    "Marks are kept by the content of the files. Searches and duplicates leave out what does not match, and keep what matches."));
  const pairs = marks.toReversed().filter((row) => row.in_collection)
    .map((row) => ({ query: row.names[0], reference: row.names[1], name: row.names[0] }));
  keepPairs(pairs, location.hash);
  const state = element("div", { role: "status" }, said && notice(said));
  place.append(state);
  if (!marks.length) {
    place.append(element("p", { class: "card empty" }, "No pair is marked yet. Open two videos side by side and press Match or Not a match."));
    return;
  }
  const body = element("tbody", {}, marks.toReversed().map((row) => {
    const line = element("tr", {},
      element("td", {}, element("span", { class: `badge ${row.verdict}` }, markNames[row.verdict])),
      row.names.map((name, side) => element("td", { class: "name" }, readable(name),
        row.paths[side] && element("span", { class: "block" }, copyButton(row.paths[side], "path", row.names[side])))),
      element("td", { class: "quiet", "data-label": "Since (UTC)" }, minute(row.since)),
      element("td", { class: "name", "data-label": "By" }, by(row.by)),
      element("td", { class: "actions" }, row.in_collection && element("a", { class: "button", "aria-label": `Compare ${row.names[0]} and ${row.names[1]}`,
        href: pairAddress({ query: row.names[0], reference: row.names[1] }) }, "Compare"), mayChange() && element("button", { type: "button",
        onclick: take, "aria-label": `Take back: ${row.names[0]} and ${row.names[1]}` }, "Take back")));
    async function take() {
      try {
        await mark({ query: row.first, reference: row.second }, null, row.verdict);
        line.remove();
        say("The mark was taken back");
      } catch (error) {
        state.replaceChildren(notice(error.message, "problem"));
        if (error.code !== "marked_meanwhile") return;
        place.replaceChildren();
        await listMarks(place, error.message);
      }
    }
    return line;
  }));
  place.append(element("div", { class: "card" }, scrollable("All marks", element("table", { class: "stack" },
    headRow(["Said", "Video", "Video", "Since (UTC)", "By", "Actions"], ["Actions"]), body))));
}
