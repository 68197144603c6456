// Small pictures of videos and queries.

import { queryThumbnail, thumbnail, watchThumbnail } from "./api.js";
import { clock, element } from "./dom.js";

const PAIR_PX = 320; // of two that people judge

export function small(address, label) {
  const image = element("img", { src: address, alt: label, loading: "lazy", width: 144, height: 81 });
  image.addEventListener("error", () => image.replaceWith(element("span", { class: "nopicture" }, "no picture")));
  return image;
}

export const picture = (id, second, label) => small(thumbnail(id, second), label);

// A picture with what it is below: whose, and at which second.
const captioned = (image, text) => element("span", { class: "shot" }, image, element("span", { class: "quiet" }, text));

const at = (second) => second === null ? "" : ` at ${clock(second)}`;

// Query and match side by side. query: {job} or {query: id} or {sha256} of a watch list.
export function picturePair(query, reference, [first, second], still = false) {
  const address = query.query ? thumbnail(query.query, first, PAIR_PX)
    : query.sha256 ? watchThumbnail(query.sha256, first) : queryThumbnail(query.job, still ? null : first, PAIR_PX);
  const yours = still ? "yours" : `yours${at(first)}`;
  return element("span", { class: "pictures" },
    captioned(small(address, yours), yours),
    captioned(small(thumbnail(reference, second, PAIR_PX), `this video${at(second)}`), `this video${at(second)}`));
}
