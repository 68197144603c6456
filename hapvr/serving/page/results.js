// The ranked list of one search.

import { thumbnail } from "./api.js";
import { chance, clock, element, markNames, middle, notice, number, percent, span } from "./dom.js";
import { answerOf, keepPairs, pairAddress, unsaid } from "./session.js";

export async function showResults(place, values) {
  const id = values.get("job");
  const answer = await answerOf(id);
  const ofCollection = (answer.query_id ?? "") !== "";
  const pairs = answer.matches.map((match) => ({
    ...(ofCollection ? { query: answer.query_id } : { job: id }), reference: match.reference, match, name: answer.query,
  }));
  keepPairs(pairs, location.hash);

  const share = answer.prior === null ? "" : ` Probabilities hold where ${(100 * answer.prior).toPrecision(3) * 1} % of the pairs match.`;
  place.append(
    element("h1", { class: "name" }, answer.query),
    element("p", { class: "quiet" }, `${clock(answer.seconds)} long; compared with ${number(answer.compared)} of ` +
      `${number(answer.videos)} videos.${share}`),
    ...unsaid(answer.warnings).map((text) => notice(text)),
  );
  if (!pairs.length) {
    place.append(element("p", { class: "card empty" }, "Nothing found."), element("p", {}, element("a", { href: "#/" }, "New search")));
    return;
  }
  place.append(
    element("ol", { class: "results" }, pairs.map((pair) => row(pair, ofCollection))),
    element("p", {}, element("a", { href: "#/" }, "New search")),
  );
}

function row(pair, ofCollection) {
  const { match } = pair;
  const at = middle(match.segments[0]);
  return element("li", {}, element("a", { class: "card result", href: pairAddress(pair) },
    element("span", { class: "rank" }, number(match.rank)),
    element("span", { class: "pictures" },
      ofCollection && picture(pair.query, at[0], `query at ${clock(at[0])}`),
      picture(match.reference, at[1], `match at ${clock(at[1])}`)),
    element("span", { class: "what" },
      element("span", { class: "name" }, match.reference),
      match.mark && element("span", { class: `badge ${match.mark}` }, `marked: ${markNames[match.mark]}`),
      element("span", { class: "parts quiet" },
        match.segments.length ? match.segments.slice(0, 3).map((part) => element("span", {}, span(part)))
          : element("span", {}, "no part could be aligned"),
        match.segments.length > 3 && element("span", {}, `and ${match.segments.length - 3} more`)),
      match.segments.length > 0 && match.query_covered !== null && element("span", { class: "quiet" },
        `covers ${percent(match.query_covered)} of the query, ${percent(match.reference_covered)} of the video`)),
    chance(match)));
}

export function picture(id, second, label) {
  const image = element("img", { src: thumbnail(id, second), alt: label, loading: "lazy", width: 144, height: 81 });
  image.addEventListener("error", () => image.replaceWith(element("span", { class: "nopicture" }, "no picture")));
  return image;
}
