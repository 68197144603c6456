// Two videos in step: the reference follows the query by the segment that is played.

import { clock, element } from "./dom.js";
import { span } from "./words.js";

const DRIFT_S = 0.12; // beyond it the follower is set again
const STEP_S = 1;

// Where a second of one side is on the other, by a segment: other speeds and offsets are kept beyond its ends.
export function other(segment, second, { back = false } = {}) {
  const sides = [[segment.query_start_s, segment.query_end_s], [segment.reference_start_s, segment.reference_end_s]];
  const [from, to] = back ? sides.toReversed() : sides;
  const speed = from[1] > from[0] ? (to[1] - to[0]) / (from[1] - from[0]) : 1;
  return to[0] + (second - from[0]) * speed;
}

// sides: {query, reference}, each {title, source, poster(second), note}. A side without a source shows pictures.
// moved(query second, reference second) is called as they play.
// isUnsure: whether the parts may show something else.
export function players(sides, segments, moved, { isUnsure = false } = {}) {
  const whole = { query_start_s: 0, query_end_s: 1, reference_start_s: 0, reference_end_s: 1 };
  let segment = segments[0] ?? whole;
  const query = player(sides.query);
  const reference = player(sides.reference);
  const leader = query.video ? query : reference;
  const times = () => leader === query
    ? [query.now(), reference.video ? reference.now() : other(segment, query.now())]
    : [other(segment, reference.now(), { back: true }), reference.now()];

  const playButton = element("button", { type: "button", class: "main play", onclick: () => toggle() }, "Play both");
  const offset = element("span", { class: "quiet" });
  const choices = segments.map((part, number) => element("button", {
    type: "button", class: "part", "aria-pressed": String(number === 0), onclick: () => choose(number) }, span(part, sides.query.still)));

  function showOffset() {
    if (sides.query.still) return;
    const by = segment.reference_start_s - segment.query_start_s;
    offset.textContent = by === 0 ? "both begin together" : by > 0 ? `0:00 of yours is ${clock(by)} of this video`
      : `0:00 of this video is ${clock(-by)} of yours`;
  }

  function seek(first, second) {
    query.seek(first);
    reference.seek(second);
    moved(Math.max(first, 0), Math.max(second, 0));
  }

  function choose(number) {
    segment = segments[number];
    choices.forEach((button, place) => button.setAttribute("aria-pressed", String(place === number)));
    showOffset();
    seek(segment.query_start_s, segment.reference_start_s);
  }

  // Seeks both to a cell of the heat map, which then gives the offset, too.
  function compare(first, second) {
    segment = segments.find((part) => first >= part.query_start_s && first <= part.query_end_s &&
      Math.abs(other(part, first) - second) < 1.5) ?? { query_start_s: first, query_end_s: first + 1, reference_start_s: second, reference_end_s: second + 1 };
    choices.forEach((button, place) => button.setAttribute("aria-pressed", String(segments[place] === segment)));
    showOffset();
    seek(first, second);
  }

  function toggle(wanted = leader.video?.paused) {
    if (!leader.video) return;
    for (const side of [query, reference]) {
      if (!side.video) continue;
      if (wanted) side.video.play().catch(() => null); // a file that cannot be played says so by its error
      else side.video.pause();
    }
    playButton.textContent = wanted ? "Pause both" : "Play both";
  }

  function step(by) {
    toggle(false);
    const [first] = times();
    seek(Math.max(first + by, 0), Math.max(other(segment, first + by), 0));
  }

  let frame = 0;
  function follow() {
    frame = requestAnimationFrame(follow);
    if (!leader.video || leader.video.seeking) return;
    const playing = !leader.video.paused;
    if (playing && segments.includes(segment)) { // a part is repeated
      const end = leader === query ? segment.query_end_s : segment.reference_end_s;
      const start = leader === query ? segment.query_start_s : segment.reference_start_s;
      if (leader.now() >= end - 0.03 || leader.now() < start - 1) return seek(segment.query_start_s, segment.reference_start_s);
    }
    const [first, second] = times();
    if (playing) {
      if (query.video && reference.video && !reference.video.seeking) {
        const wanted = other(segment, first);
        reference.video.playbackRate = Math.min(Math.max(other(segment, first + 1) - wanted, 0.25), 4);
        if (Math.abs(wanted - second) > DRIFT_S) reference.seek(Math.max(wanted, 0));
        if (reference.video.paused && wanted >= 0 && wanted < reference.video.duration) reference.video.play().catch(() => null);
      }
      if (!query.video) query.seek(first);
      if (!reference.video) reference.seek(second);
    }
    moved(first, second);
  }
  follow();
  for (const name of ["pause", "ended"]) leader.video?.addEventListener(name, () => { if (leader.video.paused) toggle(false); });
  showOffset();
  seek(segment.query_start_s, segment.reference_start_s);

  return {
    element: element("div", {},
      element("div", { class: "players" }, query.element, reference.element),
      element("div", { class: "controls", role: "group", "aria-label": "Both videos" },
        element("button", { type: "button", onclick: () => step(-STEP_S), "aria-label": "One second back" }, "−1 s"),
        playButton,
        element("button", { type: "button", onclick: () => step(STEP_S), "aria-label": "One second on" }, "+1 s"),
        offset),
      choices.length > 0 && element("div", { class: "parts", role: "group", "aria-label": "Matching parts" },
        element("span", { class: "quiet" }, isUnsure ? "Perhaps the same in both:" : "The same in both:"), choices)),
    compare, toggle, step, times,
    close: () => { cancelAnimationFrame(frame); toggle(false); },
  };
}

function player({ title, source, poster, note, still = false }) {
  const shown = element("span", { class: "time", hidden: still }, "0:00");
  const place = element("div", { class: "screen" });
  let at = 0;
  let image = null;
  const side = { video: null, now: () => side.video ? side.video.currentTime : at, seek };
  function showPicture(text) {
    side.video = null;
    image = poster ? element("img", { alt: title }) : null;
    place.replaceChildren(image ?? "", element("p", { class: "overlay" }, text));
    seek(at);
  }
  function seek(second) {
    at = Math.max(second, 0);
    shown.textContent = clock(at);
    if (side.video) side.video.currentTime = at;
    else if (image) {
      const wanted = poster(Math.round(at));
      if (image.getAttribute("src") !== wanted) image.src = wanted;
    }
  }
  if (source) {
    const video = side.video = element("video", { src: source, controls: true, muted: true, playsInline: true, preload: "auto", "aria-label": title });
    video.addEventListener("timeupdate", () => { if (side.video) { at = video.currentTime; shown.textContent = clock(at); } });
    video.addEventListener("error", () => showPicture("This browser cannot play the file; its sampled pictures are shown."));
    place.append(video);
  } else showPicture(note);
  side.element = element("figure", { class: "player" }, place,
    element("figcaption", {}, element("span", { class: "name" }, title), shown));
  return side;
}
