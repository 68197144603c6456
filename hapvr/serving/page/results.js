// The ranked list of one search, a page of rows at a time.

import { getJob, thumbnail } from "./api.js";
import { chance, clock, element, markNames, middle, notice, number, percent, span } from "./dom.js";
import { keepJob, keepPairs, knownJob, pairAddress, unsaid } from "./session.js";

export const PAGE_ROWS = 50;

export async function showResults(place, values) {
  const id = values.get("job");
  let job = knownJob(id);
  if (!job) {
    job = await getJob(id);
    if (job.status !== "done") throw new Error(job.error || "This search has not ended yet; reload the page in a moment.");
    keepJob(job);
  }
  const { answer } = job;
  const ofCollection = (answer.query_id ?? "") !== "";
  const pairs = answer.matches.map((match) => ({
    ...(ofCollection ? { query: answer.query_id } : { job: id }), reference: match.reference, match, name: answer.query,
  }));
  const pages = Math.max(Math.ceil(pairs.length / PAGE_ROWS), 1);
  const page = Math.min(Math.max(Number(values.get("page") ?? 1) || 1, 1), pages);
  const address = (wanted) => `#/results?job=${encodeURIComponent(id)}&page=${wanted}`;
  keepPairs(pairs, address(page));

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
  const first = (page - 1) * PAGE_ROWS;
  const shown = pairs.slice(first, first + PAGE_ROWS);
  place.append(
    element("ol", { class: "results", start: first + 1 }, shown.map((pair) => row(pair, ofCollection))),
    ...(pages > 1 ? [pager(page, pages, pairs.length, address)] : []),
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

function pager(page, pages, count, address) {
  const link = (wanted, text) => wanted < 1 || wanted > pages
    ? element("span", { class: "quiet", "aria-disabled": "true" }, text)
    : element("a", { href: address(wanted) }, text);
  return element("nav", { class: "pager", "aria-label": "Pages of matches" },
    link(page - 1, "← Previous"),
    element("span", {}, `${number((page - 1) * PAGE_ROWS + 1)}–${number(Math.min(page * PAGE_ROWS, count))} of ${number(count)} matches`),
    link(page + 1, "Next →"));
}
