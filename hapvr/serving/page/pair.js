// Two videos next to each other: players in step, the heat map, what people say, and the way to the next pair.

import { get, getVideo, mayChange, media, queryThumbnail, thumbnail } from "./api.js";
import { element, notice, placeLine, verdictClass } from "./dom.js";
import { remember, verdicts } from "./marks.js";
import { heatMap } from "./matrix.js";
import { players } from "./players.js";
import { fileOf, knownJob, neighbours, stateOf } from "./session.js";
import { clockNote, isUnsure, judged, perhaps, readable, titleOf, toDo } from "./words.js";

export async function showPair(place, values) {
  const [query, job, reference] = ["query", "job", "reference"].map((one) => values.get(one) || undefined);
  const around = neighbours(location.hash);
  const match = around.pair?.match ?? (job && await matchOf(job, reference));
  const name = readable(query ?? around.pair?.name ?? knownJob(job)?.query ?? "query");
  const still = around.pair?.still ?? knownJob(job)?.still ?? false;
  const heading = element("h1", { class: "name" }, titleOf(reference, around.pair?.path));
  const verdictLine = element("p", { role: "status" });
  const decide = element("div", { class: "decide" }, verdictLine);
  const queue = element("span", { class: "row" });
  const state = element("div", { role: "status" });
  const link = (address, text, hint) => address ? element("a", { class: "button", href: address, title: hint }, text)
    : element("span", { class: "button off", "aria-disabled": "true" }, text);
  place.append(
    element("div", { class: "bar" },
      element("nav", { class: "row", "aria-label": "Pairs" },
        around.back && element("a", { class: "button", href: around.back, title: "Escape" }, "Back to the list"),
        link(around.previous, "← Previous", "left arrow"),
        around.place >= 0 && around.count > 1 && element("span", { class: "quiet" }, `${around.place + 1} of ${around.count}`),
        link(around.next, "Next →", "right arrow"), queue)),
    element("div", { class: "title" }, heading, decide),
    state);

  // What the pair is called now, and the way to the next one that a person has to decide.
  function showVerdict() {
    verdictLine.className = `headline ${verdictClass(match?.verdict)}`;
    verdictLine.textContent = match ? judged(match) + (isUnsure(match) ? `. ${toDo()}` : "") : "";
    const { unsure, unsureLeft } = neighbours(location.hash);
    queue.replaceChildren(unsure ? element("a", { class: "button", href: unsure, title: "key u" }, `Next unsure (${unsureLeft} left)`) : "");
  }

  async function showPresentMark() {
    const { mark } = await get("pairs/matrix", pair);
    verdict.show(mark);
    if (match) remember(match, mark);
    showVerdict();
  }

  let both = null;
  const pair = { ...(query ? { query } : { job }), reference };
  const verdict = verdicts(pair, match, state, { changed: showVerdict, reload: showPresentMark });
  decide.append(...verdict.buttons);
  showVerdict();
  const keys = {
    ArrowLeft: () => { if (around.previous) location.hash = around.previous; },
    ArrowRight: () => { if (around.next) location.hash = around.next; },
    Escape: () => { if (around.back) location.hash = around.back; },
    " ": () => both?.toggle(),
    ",": () => both?.step(-1),
    ".": () => both?.step(1),
    u: () => { const { unsure } = neighbours(location.hash); if (unsure) location.hash = unsure; },
    m: () => verdict.decide("match"),
    n: () => verdict.decide("not_a_match"),
  };
  function pressed(event) {
    if (!place.isConnected) {
      document.removeEventListener("keydown", pressed, true);
      return;
    }
    const busy = event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea, button, video");
    const always = event.key.startsWith("Arrow") || event.key === "Escape";
    const action = keys[event.key];
    if (!action || (busy && !(always && event.target.matches("button, video")))) return;
    event.preventDefault();
    action();
  }
  document.addEventListener("keydown", pressed, true); // before the rest has arrived: people step through lists

  const [first, second] = await Promise.all([query ? getVideo(query) : null, getVideo(reference)]);
  const answer = await get("pairs/matrix", pair).catch((error) => error);
  const missing = answer instanceof Error;
  if (missing) state.replaceChildren(notice(answer.message, "problem"));
  else verdict.show(answer.mark);
  heading.textContent = titleOf(reference, second.path);
  const clocks = [first, second].filter((video) => video?.clock_note);
  place.append(...clocks.map((video) => notice(`${titleOf(video.id, video.path)}: ${clockNote(video)}`)));
  const segments = match?.segments?.length ? match.segments : (missing ? [] : answer.segments);
  const file = fileOf(job);
  let map = null;
  both = players({
    query: {
      title: name,
      source: query ? (first.playable ? media(query) : null) : file && !file.still ? file.address : null,
      poster: query ? (at) => thumbnail(query, at, 640) : file?.still ? () => file.address
        : still ? () => queryThumbnail(job, null, 640) : (at) => queryThumbnail(job, at, 640),
      note: query ? "There is no file of this video; its sampled pictures are shown."
        : still ? "A picture." : "The file is not in this browser any more; its sampled pictures are shown.",
      still,
    },
    reference: {
      title: titleOf(reference, second.path),
      source: second.playable ? media(reference) : null,
      poster: (at) => thumbnail(reference, at, 640),
      note: "There is no file of this video; its sampled pictures are shown.",
    },
  }, segments, (a, b) => map?.show(a, b), { isUnsure: perhaps(match) !== "" });

  place.append(both.element, element("div", { class: "below" },
    !missing && (map = heatMap(answer, segments, both.compare)).figure,
    element("aside", { class: "card" },
      second.path && element("p", {}, placeLine(second.path)),
      query && element("p", {}, element("button", { type: "button", onclick: () => {
        const at = both.times()[0];
        location.hash = `#/?${new URLSearchParams({ id: query, from: Math.max(at - 1, 0).toFixed(1), to: (at + 1).toFixed(1) })}`;
      } }, "Search for this moment of the query")),
      element("p", {}, element("a", { href: `#/?${new URLSearchParams({ id: reference })}` }, "Search for this video")),
      second.playable && element("p", {}, element("a", { href: media(reference), target: "_blank", rel: "noopener" }, "Open the video in a new tab")),
      element("h2", { class: "keyboard" }, "Keys"),
      element("dl", { class: "keys keyboard" }, [["← →", "previous, next pair"], ["space", "play or pause both"], [", .", "one second back, on"],
        ...(mayChange() ? [["m n", "match, not a match"]] : []), ["u", "next unsure pair"], ["Esc", "back to the list"]].flatMap(([key, text]) =>
        [element("dt", {}, key), element("dd", {}, text)])))));
  both.compare(...(segments[0] ? [segments[0].query_start_s, segments[0].reference_start_s] : [0, 0]));

  return () => both.close();
}

async function matchOf(id, reference) {
  return (await stateOf(id)).answer.matches.find((match) => match.reference === reference);
}
