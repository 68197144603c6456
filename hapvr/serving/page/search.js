// The form: drop a file, or type an id, a path or an address.

import { get, getIndex, getJob, queryThumbnail, search, searchFile } from "./api.js";
import { collectionPanel } from "./collection.js";
import { bytes, element, minute, notice, percent, say } from "./dom.js";
import { small } from "./pictures.js";
import { keepJob, keepRecent, recentSearches, rememberSearch, takeFiles } from "./session.js";
import { headline, readable } from "./words.js";

const SUGGESTED = 20;

function field(label, input, hint = "") {
  return element("label", { class: "field" }, element("span", {}, label), input,
    hint && element("small", { class: "quiet" }, hint));
}

// Where a query may be named; an address only of hosts that the service asks.
function namedField(input, hosts) {
  if (!hosts.length) return field("A video of the collection, or a path on the server", input);
  const which = hosts.includes("*") ? "" : `Addresses of ${hosts.join(", ")}`;
  return field("A video of the collection, a path on the server, or an address (URL)", input, which);
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
  const chosen = element("input", { type: "file", id: "file", class: "hidden", multiple: true, accept: "video/*,image/*,.mkv,.ts" });
  const drop = element("label", { class: "drop", htmlFor: "file" },
    element("strong", {}, "Drop videos or pictures anywhere on this page"),
    element("span", { class: "quiet" }, "or choose files"));
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
    namedField(element("div", { class: "row" }, name, begin), index.hosts ?? []),
    suggestions,
    element("label", { class: "check" }, inputs.incidents,
      element("span", {}, "Look for the same incident, also from other cameras, instead of for this footage")),
    element("details", { open: ["from", "to", "top"].some((one) => values.get(one)) },
      element("summary", {}, "Options"),
      element("div", { class: "options" },
        field("From second", inputs.from), field("To second", inputs.to),
        field("Matches at most", inputs.top), field("How sure at least", inputs.min_probability, "0 to 1; empty: all"),
        field("Only in this folder", inputs.folder, "of the collection"))),
    state);
  const several = element("ol", { class: "sent" });
  place.append(element("h1", {}, "Find footage"), form, several);

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

  const tooLarge = (file) => index.max_bytes && file.size > index.max_bytes
    ? `${readable(file.name)} has ${bytes(file.size)}; at most ${bytes(index.max_bytes)} are taken.` : "";

  // One file leads to its answer; of several each gets a row.
  async function take(files) {
    if (!files.length) return;
    if (files.length > 1) {
      await takeSeveral(files);
      return;
    }
    const [file] = files;
    if (tooLarge(file)) {
      state.replaceChildren(notice(tooLarge(file), "problem"));
      return;
    }
    drop.querySelector("strong").textContent = readable(file.name);
    arrive(await run(file.name, (given) => searchFile(file, options(), given)), file);
  }

  async function takeSeveral(files) {
    running?.abort();
    const mine = running = new AbortController();
    const rows = files.map((file) => {
      const words = element("span", { class: "quiet", role: "status" }, "waits …");
      const line = element("li", { class: "card row" }, element("span", { class: "name" }, readable(file.name)), words);
      return { file, words, line };
    });
    several.replaceChildren(...rows.map((row) => row.line));
    say(`${files.length} files are searched for, one after the other`);
    for (const row of rows) {
      if (mine.signal.aborted) return;
      await searchRow(row, mine.signal);
    }
  }

  async function searchRow({ file, words, line }, signal) {
    try {
      if (tooLarge(file)) throw new Error(tooLarge(file));
      const job = await searchFile(file, options(), { signal,
        progress: (at) => { words.textContent = at.status === "waiting" ? "waits for its turn …" : "searching …"; },
        sent: (part) => { words.textContent = `sending ${percent(part)} …`; } });
      keepJob(job, file);
      const said = headline(job.answer);
      rememberSearch({ job: job.job, query: job.query, id: "", headline: said, since: job.since });
      line.prepend(small(queryThumbnail(job.job), `a picture of ${readable(file.name)}`));
      words.replaceWith(element("strong", { role: "status" }, said),
        element("a", { class: "button", href: `#/results?job=${job.job}`, "aria-label": `See the answer for ${readable(file.name)}` }, "See the answer"));
    } catch (error) {
      if (!signal.aborted) words.replaceWith(notice(error.message, "problem"));
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = name.value.trim();
    if (!text) { name.focus(); return; }
    const kind = text.includes("://") ? "url" : text.startsWith("/") ? "path" : "id";
    arrive(await run(text, (given) => search({ [kind]: text, ...options() }, given)));
  });
  chosen.addEventListener("change", () => take([...chosen.files]));
  chosen.addEventListener("focus", () => drop.classList.add("focus"));
  chosen.addEventListener("blur", () => drop.classList.remove("focus"));

  if (values.get("id") && values.get("from")) form.requestSubmit();
  const letGo = takeFiles(take);
  const below = element("div", { class: "panels" });
  place.append(below);
  collectionPanel(below);
  showRecent(below);
  return () => {
    letGo();
    running?.abort();
  };
}

// The searches of this browser whose answers are still kept.
async function showRecent(place) {
  const list = element("ul", { class: "recent" });
  const panel = element("section", { class: "card", hidden: true }, element("h2", {}, "Recent searches"), list);
  place.prepend(panel);
  const kept = [];
  for (const search of recentSearches()) {
    const job = await getJob(search.job).catch((error) => error);
    if (!place.isConnected) return;
    if (job instanceof Error || job.status !== "done") continue;
    kept.push(search);
    list.append(element("li", {}, element("a", { href: `#/results?job=${encodeURIComponent(search.job)}` },
      small(queryThumbnail(search.job), ""), element("span", { class: "what" },
        element("span", { class: "name" }, readable(search.query)),
        element("span", { class: "quiet" }, headline(job.answer), ` · ${minute(search.since)} UTC`)))));
    panel.hidden = false;
  }
  keepRecent(kept);
}
