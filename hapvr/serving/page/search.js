// The form: drop a file, or type an id, a path or an address.

import { get, getIndex, search, searchFile } from "./api.js";
import { bytes, element, notice, percent, say } from "./dom.js";
import { keepJob } from "./session.js";

const SUGGESTED = 20;

function field(label, input, hint = "") {
  return element("label", { class: "field" }, element("span", {}, label), input,
    hint && element("small", { class: "quiet" }, hint));
}

// An input for the id of a video, and the list of ids that it suggests.
export function videoInput(properties) {
  const suggestions = element("datalist", { id: "suggestions" });
  const input = element("input", { type: "text", list: "suggestions", autocomplete: "off", spellcheck: false,
                                   placeholder: "source/name.mp4", ...properties });
  let pause = 0;
  const suggest = async () => {
    const found = await get("videos", { contains: input.value.trim(), limit: SUGGESTED }).catch(() => ({ videos: [] }));
    suggestions.replaceChildren(...found.videos.map((video) => element("option", { value: video.id })));
  };
  input.addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(suggest, 150); });
  input.addEventListener("focus", suggest, { once: true });
  return [input, suggestions];
}

export async function showSearch(place, values) {
  const index = await getIndex().catch(() => ({}));
  const chosen = element("input", { type: "file", id: "file", class: "hidden", accept: "video/*,image/*,.mkv,.ts" });
  const drop = element("label", { class: "drop", htmlFor: "file" },
    element("strong", {}, "Drop a video or a picture here"),
    element("span", { class: "quiet" }, "or choose a file"));
  const [name, suggestions] = videoInput({ id: "name", value: values.get("id") ?? "" });
  const option = (id, properties) => element("input", { id, step: "any", min: 0, type: "number", ...properties });
  const inputs = {
    from: option("from", { value: values.get("from") ?? "" }),
    to: option("to", { value: values.get("to") ?? "" }),
    top: option("top", { step: 1, min: 1, max: 10000, value: values.get("top") ?? 20 }),
    min_probability: option("min_probability", { max: 1, value: "" }),
    folder: element("input", { id: "folder", type: "text", placeholder: "source/folder", spellcheck: false }),
    incidents: element("input", { id: "incidents", type: "checkbox", checked: values.get("incidents") === "true" }),
  };
  const begin = element("button", { type: "submit", class: "main" }, "Search");
  const state = element("div", { class: "state", role: "status" });
  const form = element("form", { class: "card search" },
    chosen, drop,
    element("div", { class: "or" }, "or"),
    field("A video of the collection, a path on the server, or a URL", element("div", { class: "row" }, name, begin)),
    suggestions,
    element("label", { class: "check" }, inputs.incidents,
      element("span", {}, "Look for the same incident, also from other cameras, instead of for this footage")),
    element("details", { open: ["from", "to", "top"].some((one) => values.get(one)) },
      element("summary", {}, "Options"),
      element("div", { class: "options" },
        field("From second", inputs.from), field("To second", inputs.to),
        field("Matches at most", inputs.top), field("Least probability", inputs.min_probability, "0 to 1; empty: all"),
        field("Only in", inputs.folder, "beginning of the ids"))),
    state);
  place.append(element("h1", {}, "Find footage"), form);

  const valueOf = (input) => {
    if (input.type === "checkbox") return input.checked;
    return input.type === "number" ? Number(input.value) : input.value;
  };
  const options = () => Object.fromEntries(Object.entries(inputs)
    .filter(([, input]) => input.value !== "")
    .map(([key, input]) => [key, valueOf(input)]));

  let running = null;

  async function run(what, begun) {
    running?.abort();
    const mine = running = new AbortController();
    const bar = element("progress", { "aria-label": "progress of the search" });
    const words = element("span", {}, "Searching …");
    state.replaceChildren(words, bar,
      element("button", { type: "button", onclick: () => { mine.abort(); state.replaceChildren("Canceled."); } }, "Cancel"));
    say(`Searching for ${what}`);
    try {
      const job = await begun({
        signal: mine.signal,
        progress: (job) => { words.textContent = job.status === "waiting" ? "Waiting for its turn …" : "Searching …"; bar.removeAttribute("value"); },
        sent: (part) => { words.textContent = `Sending … ${percent(part)}`; bar.value = part; },
      });
      return mine.signal.aborted ? null : job;
    } catch (error) {
      if (!mine.signal.aborted) state.replaceChildren(notice(error.message, "problem"));
      return null;
    }
  }

  const arrive = (job, file = null) => {
    if (!job) return;
    keepJob(job, file);
    location.hash = `#/results?job=${job.job}`;
  };

  async function take(file) {
    if (!file) return;
    if (index.max_bytes && file.size > index.max_bytes) {
      state.replaceChildren(notice(`${file.name} has ${bytes(file.size)}; at most ${bytes(index.max_bytes)} are taken.`, "problem"));
      return;
    }
    drop.querySelector("strong").textContent = file.name;
    arrive(await run(file.name, (given) => searchFile(file, options(), given)), file);
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = name.value.trim();
    if (!text) { name.focus(); return; }
    const kind = text.includes("://") ? "url" : text.startsWith("/") ? "path" : "id";
    arrive(await run(text, (given) => search({ [kind]: text, ...options() }, given)));
  });
  chosen.addEventListener("change", () => take(chosen.files[0]));
  for (const kind of ["dragenter", "dragover"])
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
  chosen.addEventListener("focus", () => drop.classList.add("focus"));
  chosen.addEventListener("blur", () => drop.classList.remove("focus"));

  if (values.get("id") && values.get("from")) form.requestSubmit();
  return () => running?.abort();
}
