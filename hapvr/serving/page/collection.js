// The collection on the first page: what it holds, what cannot be used and why, and taking in what is new.

import { getCollection, getUpdate, mayChange, plain, startUpdate } from "./api.js";
import { element, minute, notice, number, placeLine, say } from "./dom.js";
import { readable } from "./words.js";

const SHOWN = 20;
const AGAIN_MS = 1000;

export async function collectionPanel(place) {
  const panel = element("section", { class: "card collection" });
  place.append(panel);
  const work = element("div", { role: "status" });

  async function show() {
    const state = await getCollection();
    const update = element("button", { type: "button", onclick: () => follow(startUpdate) }, "Update now");
    panel.replaceChildren(
      element("h2", {}, "The collection"),
      element("p", {}, state.videos ? `${number(state.videos)} ${state.videos === 1 ? "video" : "videos"} can be searched` : "No video can be searched yet",
        state.updated && `, as of ${minute(state.updated)} UTC`, "."),
      element("ul", { class: "folders" }, state.folders.map((folder) => element("li", {},
        element("strong", { class: "name" }, folder.name), ` ${number(folder.videos)} ${folder.videos === 1 ? "video" : "videos"}`,
        !folder.there && element("span", { class: "badge" }, "not there now; its drive may be away"), placeLine(folder.path)))),
      state.can_update && mayChange() ? element("p", { class: "row" }, update,
        element("span", { class: "quiet" }, "looks for files that are new, moved or gone, and compares them with the watch lists")) : "",
      work, unusable(state.unusable), partial(state.partial));
    const job = await getUpdate();
    if (job.running) follow(() => job);
  }

  // How far taking in new files is, and the panel again at its end.
  async function follow(begin) {
    const words = element("span", {}, "Looking for new files …");
    const bar = element("progress", { "aria-label": "progress of the update" });
    work.replaceChildren(element("p", { class: "state" }, words, bar));
    for (const button of panel.querySelectorAll("p.row button")) button.disabled = true;
    try {
      for (let job = await begin(); job.running; job = await getUpdate()) {
        if (!place.isConnected) return;
        words.textContent = progressText(job);
        if (job.total) [bar.max, bar.value] = [job.total, job.done];
        else bar.removeAttribute("value");
        await new Promise((next) => setTimeout(next, AGAIN_MS));
      }
      const { error } = await getUpdate();
      work.replaceChildren();
      document.dispatchEvent(new Event("collection-changed"));
      await show();
      if (error) throw new Error(plain({ error }));
      work.replaceChildren(element("p", { class: "quiet" }, "Everything is up to date."));
      say("Everything is up to date");
    } catch (error) {
      work.replaceChildren(notice(error.message, "problem"));
    }
  }

  await show().catch((error) => panel.replaceChildren(element("h2", {}, "The collection"), notice(error.message, "problem")));
}

function progressText(job) {
  const doing = job.doing ? job.doing[0].toUpperCase() + job.doing.slice(1) : "Beginning";
  const amount = job.total ? ` ${number(job.done)} of ${number(job.total)} files` : " …";
  const left = job.left_s === null || job.left_s === undefined || !job.total ? "" : `, ${duration(job.left_s)} left`;
  const file = job.file ? ` (${job.file})` : "";
  return `${doing}:${amount}${left}${file}`.replace(": …", " …");
}

function duration(seconds) {
  if (seconds < 60) return "less than a minute";
  return seconds < 3600 ? `about ${Math.round(seconds / 60)} min` : `about ${(seconds / 3600).toFixed(1)} h`;
}

const unusable = (files) => listed(files, `${number(files.length)} ${files.length === 1 ? "file" : "files"} cannot be used`, plain,
  "; “Why was a video not found?” below an answer says it of each.");

const partial = (files) => listed(files, `Of ${files.length === 1 ? "1 file" : `${number(files.length)} files`} only a part can be searched`,
  (file) => plain({ error: file.missing }), ".");

// Each file with its reason; the first ones where there are many.
function listed(files, title, reason, elsewhere) {
  if (!files.length) return "";
  return element("details", { class: "unusable", open: files.length <= 3 },
    element("summary", {}, title),
    element("ul", {}, files.slice(0, SHOWN).map((file) => element("li", {},
      element("strong", { class: "name" }, readable(file.id)), element("span", { class: "block quiet" }, reason(file))))),
    files.length > SHOWN && element("p", { class: "quiet" }, `and ${number(files.length - SHOWN)} more${elsewhere}`));
}

