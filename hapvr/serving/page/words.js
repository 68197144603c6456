// What the page says of videos and pairs, in plain words. Numbers for experts are behind "How sure is this?".

import { mayChange } from "./api.js";
import { clock, number, probability } from "./dom.js";

const CONTENT = /\b[0-9a-f]{64}\b/g;
const UNSEEN = /[\p{Cc}\p{Bidi_Control}]/gu; // these turn the direction of writing round, and "gpj.exe" into "exe.jpg"

// A name as people read it: the last part of a path, no 64 digits, and nothing that cannot be seen.
export function readable(name) {
  const last = name.startsWith("/") ? name.slice(name.lastIndexOf("/") + 1) : name;
  return last.replace(UNSEEN, "").replace(CONTENT, (digest) => `file ${digest.slice(0, 8)}`);
}

// What a video is called: by its id, or by where its file lies now, if that is elsewhere.
export function titleOf(id, path = "") {
  const inFolder = id.slice(id.indexOf("/") + 1);
  return readable(!path || path.endsWith(`/${inFolder}`) ? id : path);
}

const day = (since) => since ? `, ${since.slice(0, 10)}` : "";
const byWhom = (name) => name && name !== "local user" ? ` by ${name}` : "";

// The verdict of a pair as one phrase; what people said comes first.
export function judged(row, { incidents = false } = {}) {
  if (row.mark) return `Marked as ${row.mark === "match" ? "a match" : "not a match"}${byWhom(row.marked_by)}${day(row.marked_since)}`;
  if (row.same_file) return "The same file";
  if (!row.verdict) return "Looks alike; this model cannot say how sure that is";
  const sure = row.probability === null || row.probability === undefined ? "" : ` (${probability(row.probability)})`;
  if (row.aligned === false) return `Alike${sure}, but is it the same footage?`;
  if (row.verdict === "unsure") return `Unsure${sure}`;
  if (row.verdict === "no match") return `Probably something else${sure}`;
  return `${incidents ? "Same incident" : "Same footage"}, ${(row.probability ?? 1) >= 0.98 ? "almost certain" : "very likely"}${sure}`;
}

// What a person does with a pair that is unsure.
export const toDo = () => mayChange() ? "Compare the two, then press Match or Not a match." : "Compare the two.";

// Whether a person has to decide: also of two that are alike while no stretch of them could be matched second by second.
export const isUnsure = (match) => !match.mark && !match.same_file && (match.verdict === "unsure" || match.aligned === false);

const videos = (count, verb) => count === 1 ? `1 video ${verb}s` : `${number(count)} videos ${verb}`;

// The answer of a search in one line.
export function headline(answer) {
  if (!answer.matches.length) return "Nothing found";
  const sure = answer.matches.filter((match) => match.verdict === "match").length;
  const unsure = answer.matches.filter(isUnsure).length;
  const what = answer.incidents ? "the same incident" : "the same footage";
  if (answer.precision === null && !sure) return "The most similar videos; this model cannot say how sure that is";
  const toLook = unsure === 1 ? "1 is unsure: compare it" : `${number(unsure)} are unsure: compare them`;
  if (sure) return `${videos(sure, "show")} ${what}${unsure ? `; ${toLook}` : ""}`;
  return unsure ? `Nothing certain; ${toLook}` : "No video seems to show it";
}

// What was searched for and in how much: a picture has no length.
export function lookedAt(answer, still) {
  const isShort = answer.seconds < 1;
  const length = still ? "A picture" : isShort ? "Less than a second long" : `${clock(answer.seconds)} long`;
  const others = answer.query_id ? answer.videos - 1 : answer.videos; // a video does not find itself
  const looked = answer.compared >= others ? `looked at all ${number(others)}${answer.query_id ? " other" : ""} videos`
    : `looked closely at the ${number(answer.compared)} most likely of ${number(others)} videos`;
  return `${length}; ${looked}.`;
}

// How fast the query is, where that is more than sampling can explain; as `Segment.speed`.
function speed(part) {
  const query = part.query_end_s - part.query_start_s;
  const reference = part.reference_end_s - part.reference_start_s;
  const less = Math.min(query, reference);
  const more = Math.max(query, reference);
  return more - less < 2 || more < 1.2 * less || less <= 0 ? "" : `, at ${(reference / query).toFixed(1)}× speed`;
}

// What a person must know of a part before they cite its seconds; "" where there is nothing.
export const noteOf = (part) => part.certain === false || part.certain_offset === false ? "fixed camera or repeating scene: the exact second is not certain" : "";

const range = (start, end) => `${clock(start)}–${clock(end)}`;

// A common part; of a picture only where the video shows it.
export function span(part, still = false) {
  const note = noteOf(part) ? `; ${noteOf(part)}` : "";
  if (still) return `at ${clock(part.reference_start_s)} of this video${note}`;
  return `${range(part.reference_start_s, part.reference_end_s)} of this video = ` +
    `${range(part.query_start_s, part.query_end_s)} of yours${speed(part)}${note}`;
}

// Before the parts of a match: where the program is not sure of it, it is not sure of its seconds, whatever people say of the two.
export const perhaps = (match) => match && !match.same_file && match.probability !== null && match.probability < 0.95 ? "perhaps " : "";

const share = (part) => part >= 0.995 ? "all" : part < 0.01 ? "less than 1 %" : `${Math.round(100 * part)} %`;

// How much the common parts are; "" where that says nothing.
export function covers(match, still = false) {
  if (!match.segments?.length || still) return "";
  if (match.query_covered === null || match.query_covered === undefined) return "";
  return `${share(match.query_covered)} of yours, ${share(match.reference_covered)} of this video`;
}

// Of a video whose clock is broken: its seconds are not those of other players.
export const clockNote = (video) => `Its seconds may differ from those of other players: ${video.clock_note}.`;

// Why a match is judged as it is, in three sentences.
export function whySentences(match, { still = false, incidents = false } = {}) {
  const part = match.segments?.[0];
  const yours = still ? "your picture" : "your video";
  const seen = match.same_file ? "Both files have exactly the same bytes."
    : !part ? `The two look alike as a whole, but no stretch of them matches second by second.`
    : still ? `${yours[0].toUpperCase()}${yours.slice(1)} looks like what this video shows at ${clock(part.reference_start_s)}.`
    : `What ${yours} shows at ${range(part.query_start_s, part.query_end_s)} looks like ${range(part.reference_start_s, part.reference_end_s)} of this video, in the same order.`;
  const amount = covers(match, still) ? `Together the common parts are ${covers(match)}.`
    : match.inner_picture ? "Only a part of the picture was compared, as in a split screen." : "Only pictures are compared, not sound.";
  return [seen, amount, judgement(match, incidents)];
}

function judgement(match, incidents) {
  if (match.mark) return "A person has said so, which counts more than what the program finds.";
  if (match.same_file) return "So there is nothing to doubt.";
  if (!match.verdict) return "This model was not measured, so it ranks videos and cannot say how sure it is.";
  if (match.verdict === "match") return `Pictures as alike as these are nearly always of the same ${incidents ? "incident" : "footage"}.`;
  if (match.verdict === "unsure") return "Pictures as alike as these may be of the same footage or of a similar scene, so a person has to look.";
  return "Unrelated videos are often as alike as these two.";
}

export { speed };
