// Calls of the service. An error of any kind has one sentence, and those of the service their code.

import { element } from "./dom.js";

const AWAY = "The service does not answer. Ask whoever runs it to start it again (hapvr serve).";
const UNEXPLAINED = "The service could not do this and did not say why. Its log says more.";
const WAIT_S = 10;

let token = sessionStorage.getItem("token") ?? "";
let ticket = ""; // for pictures and videos, which the browser loads without headers
let asking = null;
let mayMark = true; // until the service says otherwise
let hasPaths = true;

// Whether this reader may mark pairs, watch for clips and start work; otherwise such buttons are not shown.
export const mayChange = () => mayMark;
// Whether this reader sees where files lie, as a plan for copies says.
export const maySeePaths = () => hasPaths;

const bearer = () => token ? { authorization: `Bearer ${token}` } : {};

// Asks for a token where the service wants one; all requests wait for it.
function askForToken() {
  return new Promise((resolve) => {
    const input = element("input", { type: "password", required: true, autocomplete: "off", pattern: "[!-~]+" });
    const dialog = element("dialog", { class: "card", oncancel: (event) => event.preventDefault() },
      element("form", { class: "search", onsubmit: (event) => {
        event.preventDefault();
        sessionStorage.setItem("token", token = input.value);
        dialog.remove();
        resolve();
      } },
      element("label", { class: "field" }, element("span", {}, token ? "This token is not known; type another" : "Your token"), input,
        element("small", { class: "quiet" }, "From whoever runs this service. The page forgets it when it is closed.")),
      element("button", { type: "submit", class: "main" }, "Continue")));
    document.body.append(dialog);
    dialog.showModal();
  });
}

async function send(path, options = {}) {
  const sent = token;
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { ...options.headers, ...bearer() } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(AWAY);
  }
  if (answer.status !== 401) return answer;
  if (token === sent) await (asking ??= askForToken().finally(() => { asking = null; }));
  return send(path, options);
}

async function value(answer) {
  let found = null;
  try {
    found = await answer.json();
  } catch {
    throw new Error(UNEXPLAINED);
  }
  if (!answer.ok) throw Object.assign(new Error(plain(found) || UNEXPLAINED), { code: found?.code ?? "" });
  return found;
}

// A sentence of the service for people: without the name of its part and without marks of code.
export const plain = ({ error, plain: said } = {}) => said ? sentence(said) : sentence(error);

function sentence(text) {
  const said = (text ?? "").replace(/^(search|query|jobs|pairs|video|index|watch|media|thumbnails|pictures|upload|request): /, "").replaceAll("`", "");
  return said.charAt(0).toUpperCase() + said.slice(1);
}

const call = async (path, options) => value(await send(path, options));

const query = (values) => {
  const given = Object.entries(values).filter(([, one]) => one !== undefined && one !== null && one !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export const get = (path, values = {}, options = {}) => call(path + query(values), options);

export const getIndex = async () => {
  const index = await get("index");
  ticket = index.ticket;
  mayMark = index.may_mark;
  hasPaths = index.has_paths;
  return index;
};
export const getVideo = (id) => get(`videos/${encodeURIComponent(id)}`);
export const getJob = (job) => get(`jobs/${encodeURIComponent(job)}`);
export const getDuplicateJob = () => get("duplicates/job");
export const startDuplicateJob = () => call("duplicates/job", { method: "POST" });
// What could be done about copies, as a file.
export async function getPlan(form) {
  const answer = await send(`duplicates/plan${query({ form })}`, { method: "POST" });
  return answer.ok ? answer.blob() : value(answer);
}
export const media = (id) => `media/${encodeURIComponent(id)}${query({ ticket })}`;
// Without a second: the first picture that shows something.
export const thumbnail = (id, second = null, width = 192) =>
  `thumbnails/${encodeURIComponent(id)}${query({ second: second === null ? null : Math.max(second, 0).toFixed(2), width, ticket })}`;

// A picture of what was searched for.
export const queryThumbnail = (job, second = null, width = 192) =>
  `query-pictures/${encodeURIComponent(job)}${query({ second: second === null ? null : Math.max(second, 0).toFixed(2), width, ticket })}`;
// A picture of a query of a watch list.
export const watchThumbnail = (sha256, second = null, width = 192) =>
  `watch-pictures/${encodeURIComponent(sha256)}${query({ second: second === null ? null : Math.max(second, 0).toFixed(2), width, ticket })}`;

export const getCollection = () => get("collection");
export const getUpdate = () => get("collection/job");
export const startUpdate = () => call("collection/job", { method: "POST" });
export const removeWatchList = (name) => call(`watch/${encodeURIComponent(name)}`, { method: "DELETE" });
export const runWatchLists = () => call("watch/job", { method: "POST" });
export const getWatchRun = () => get("watch/job");

// The answer of a search as a CSV file.
export async function getTable(job, values) {
  const answer = await send(`jobs/${encodeURIComponent(job)}/table${query(values)}`);
  return answer.ok ? answer.blob() : value(answer);
}

export const getExplanation = (job, reference) => get(`jobs/${encodeURIComponent(job)}/explanation`, { reference });

// A watch list of what a search was for; file: where the browser has it, otherwise the service does.
export const watchFor = (job, file) => call(`watch${query({ job })}`, {
  method: "POST",
  headers: { "content-type": "application/octet-stream" },
  body: file,
});

// seen: the verdict that is shown, "" for none; what others have said meanwhile is not overwritten.
export const mark = (pair, verdict, seen) => call("pairs", {
  method: "PATCH",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ ...pair, mark: verdict, seen }),
});

// A search for {id}, {path} or {url}; progress gets the job as it goes on, signal ends it.
export async function search(asked, { progress, signal }) {
  const begun = await call("search", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(asked),
    signal,
  });
  return ended(begun, { progress, signal });
}

// A search for a file; sent gets the part of it that has arrived, in [0, 1].
export async function searchFile(file, asked, { progress, sent, signal }) {
  const begun = await new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not say how much was sent
    request.open("POST", `search${query({ ...asked, name: file.name })}`);
    for (const [name, text] of Object.entries({ "content-type": "application/octet-stream", ...bearer() })) request.setRequestHeader(name, text);
    request.upload.onprogress = (event) => event.lengthComputable && sent(event.loaded / event.total);
    request.onload = () => resolve(new Response(request.responseText, { status: request.status }));
    request.onerror = () => reject(new Error(AWAY));
    request.onabort = () => reject(new DOMException("canceled", "AbortError"));
    signal.addEventListener("abort", () => request.abort());
    request.send(file);
  });
  return ended(await value(begun), { progress, signal });
}

async function ended(job, { progress, signal }) {
  const cancel = () => send(`jobs/${encodeURIComponent(job.job)}`, { method: "DELETE" }).catch(() => null);
  signal.addEventListener("abort", cancel);
  try {
    while (job.status === "waiting" || job.status === "running") {
      progress(job);
      job = await get(`jobs/${encodeURIComponent(job.job)}`, { wait_s: WAIT_S }, { signal });
    }
  } finally {
    signal.removeEventListener("abort", cancel);
  }
  if (job.status === "failed") throw new Error(plain(job));
  return job;
}
