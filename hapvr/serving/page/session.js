// What this page remembers until it is closed: files that were searched for, answers, and the pairs to step through.

import { getJob } from "./api.js";

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

export async function answerOf(id) {
  const job = jobs.get(id) ?? await getJob(id);
  if (job.status !== "done") throw new Error(job.error || "This search has not ended yet; reload the page in a moment.");
  keepJob(job);
  return job.answer;
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
  };
}

// What the top of the page says already is not repeated below it.
export function keepWarnings(found) {
  warnings = found;
}

export const unsaid = (found) => found.filter((text) => !warnings.includes(text));
