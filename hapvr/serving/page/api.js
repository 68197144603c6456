// Calls of the service. An error of any kind has one sentence.

const AWAY = "The service does not answer. Is `hapvr serve` still running?";
const UNEXPLAINED = "The service could not do this and did not say why. Its log says more.";
const WAIT_S = 10;

async function value(answer) {
  let found = null;
  try {
    found = await answer.json();
  } catch {
    throw new Error(UNEXPLAINED);
  }
  if (!answer.ok) throw new Error(plain(found.error) || UNEXPLAINED);
  return found;
}

// A sentence of the service without the name of its part, which only a program needs.
function plain(sentence) {
  const said = (sentence ?? "").replace(/^(search|query|jobs|pairs|video|index|watch|media|thumbnails): /, "");
  return said.charAt(0).toUpperCase() + said.slice(1);
}

async function call(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(AWAY);
  }
  return value(answer);
}

const query = (values) => {
  const given = Object.entries(values).filter(([, one]) => one !== undefined && one !== null && one !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

export const get = (path, values = {}, options = {}) => call(path + query(values), options);

export const getIndex = () => get("index");
export const getVideo = (id) => get(`videos/${encodeURIComponent(id)}`);
export const getJob = (job) => get(`jobs/${encodeURIComponent(job)}`);
export const media = (id) => `media/${encodeURIComponent(id)}`;
// Without a second: the first picture that shows something.
export const thumbnail = (id, second = null, width = 192) =>
  `thumbnails/${encodeURIComponent(id)}${query({ second: second === null ? null : Math.max(second, 0).toFixed(2), width })}`;

export const mark = (pair, verdict) => call("pairs", {
  method: "PATCH",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ ...pair, mark: verdict }),
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
    request.setRequestHeader("content-type", "application/octet-stream");
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
  const cancel = () => fetch(`jobs/${encodeURIComponent(job.job)}`, { method: "DELETE" }).catch(() => null);
  signal.addEventListener("abort", cancel);
  try {
    while (job.status === "waiting" || job.status === "running") {
      progress(job);
      job = await get(`jobs/${encodeURIComponent(job.job)}`, { wait_s: WAIT_S }, { signal });
    }
  } finally {
    signal.removeEventListener("abort", cancel);
  }
  if (job.status === "failed") throw new Error(plain(job.error));
  return job;
}
