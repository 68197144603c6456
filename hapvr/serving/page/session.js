// What this page remembers until it is closed: files that were searched for, answers, and the pairs to step through.

import { getJob, plain } from "./api.js";
import { isUnsure } from "./words.js";

const RECENT = "recent searches";
const MAX_RECENT = 8;

const files = new Map(); // job -> {file, address, still} in the browser
const jobs = new Map(); // job -> its answer

let pairs = [];
let warnings = [];
let back = "#/";

export function keepJob(job, file = null) {
  jobs.set(job.job, job);
  if (file) files.set(job.job, { file, address: URL.createObjectURL(file), still: file.type.startsWith("image/") });
}

export const knownJob = (job) => jobs.get(job);

// The present state of a search that has ended: marks that were made since count.
export async function stateOf(id) {
  const job = await getJob(id);
  if (job.status === "failed") throw new Error(plain(job));
  if (job.status !== "done") throw new Error("This search has not ended yet; reload the page in a moment.");
  keepJob(job);
  return job;
}

export const fileOf = (job) => files.get(job);

// The pairs that "next" and "previous" go through, and where "back" leads.
export function keepPairs(found, from) {
  pairs = found;
  back = from;
}

export const pairAddress = ({ query, job, reference }) =>
  `#/pair?${new URLSearchParams(Object.entries({ query, job, reference }).filter(([, one]) => one))}`;

export function neighbours(address) {
  const place = pairs.findIndex((pair) => pairAddress(pair) === address);
  return {
    pair: pairs[place],
    place,
    count: pairs.length,
    previous: place > 0 ? pairAddress(pairs[place - 1]) : "",
    next: place >= 0 && place + 1 < pairs.length ? pairAddress(pairs[place + 1]) : "",
    back: place >= 0 ? back : "",
    unsure: unsureAfter(place),
    unsureLeft: pairs.filter((pair) => isUnsure(pair.match ?? {})).length,
  };
}

// The next pair that a person has to decide, from one on and round; "" where there is none.
export function unsureAfter(place) {
  const inOrder = [...pairs.slice(place + 1), ...pairs.slice(0, Math.max(place, 0))];
  const next = inOrder.find((pair) => isUnsure(pair.match ?? {}));
  return next ? pairAddress(next) : "";
}

// What the top of the page says already is not repeated below it.
export function keepWarnings(found) {
  warnings = found;
}

export const unsaid = (found) => found.filter((text) => !warnings.includes(text));

let take = null;
let waiting = [];

// Files that were dropped anywhere: they go to the view that searches, or wait for it, also while it is being loaded.
export function offerFiles(dropped) {
  if (take) {
    take(dropped);
    return;
  }
  waiting = dropped;
  if (!/^#?\/?(\?.*)?$/.test(location.hash)) location.hash = "#/";
}

// The view that searches takes files until what this returns is called.
export function takeFiles(taker) {
  take = taker;
  const before = waiting;
  waiting = [];
  if (before.length) taker(before);
  return () => { if (take === taker) take = null; };
}

// The searches of this browser, the newest first: {job, query, id, headline, since}.
export function recentSearches() {
  try {
    return JSON.parse(localStorage.getItem(RECENT)) ?? [];
  } catch {
    return [];
  }
}

export function rememberSearch(search) {
  const before = recentSearches().filter((kept) => kept.job !== search.job);
  keepRecent([search, ...before].slice(0, MAX_RECENT));
}

export function keepRecent(searches) {
  try {
    localStorage.setItem(RECENT, JSON.stringify(searches));
  } catch {
    return; // a browser that keeps nothing shows no recent searches
  }
}

// The key `u` leads from a list to its first unsure pair. Returns what ends that.
export function goToUnsureByKey() {
  function pressed(event) {
    const isMeant = event.key === "u" && !(event.ctrlKey || event.metaKey || event.altKey) && !event.target.matches("input, select, textarea");
    const next = unsureAfter(-1);
    if (!isMeant || !next) return;
    event.preventDefault();
    location.hash = next;
  }
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}
