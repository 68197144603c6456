// Which view an address shows. The address after # holds all that a view needs, so links and reloads work.

import { getIndex, mayChange, plain } from "./api.js";
import { element, forgetTold, notice, number, percent, tell } from "./dom.js";
import { showDuplicates } from "./duplicates.js";
import { showHelp } from "./help.js";
import { showInterface } from "./interface.js";
import { showMarks } from "./marks.js";
import { showPair } from "./pair.js";
import { showReport } from "./report.js";
import { showResults } from "./results.js";
import { showSearch } from "./search.js";
import { keepWarnings, offerFiles } from "./session.js";
import { showWatch } from "./watch.js";

const views = {
  "": { show: showSearch, tab: "search" },
  results: { show: showResults, tab: "search" },
  report: { show: showReport, tab: "search" },
  help: { show: showHelp, tab: "" },
  requests: { show: showInterface, tab: "" },
  pair: { show: showPair, tab: "" },
  duplicates: { show: showDuplicates, tab: "duplicates" },
  marks: { show: showMarks, tab: "marks" },
  watch: { show: showWatch, tab: "watch" },
};

const ONLY_READS = "With your token you can search and look. To mark pairs, watch for clips or take in new files, ask whoever " +
  "runs this service for a token that may.";

let leave = () => {};
let turn = 0;

async function route() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  const view = views[path] ?? views[""];
  const content = document.getElementById("content");
  const mine = ++turn;
  leave();
  leave = () => {};
  forgetTold();
  for (const link of document.querySelectorAll("nav a"))
    if (link.dataset.view === view.tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  const place = element("div", { class: "view" });
  content.replaceChildren(place, element("p", { class: "loading quiet" }, "Loading …"));
  try {
    const left = await view.show(place, new URLSearchParams(values ?? ""));
    if (mine !== turn) left?.();
    else leave = left ?? leave;
  } catch (error) {
    place.replaceChildren(element("h1", {}, "This cannot be shown"), notice(error.message, "problem"), element("p", {}, element("a", { href: "#/" }, "New search")));
  }
  if (mine === turn) {
    content.querySelector(".loading")?.remove();
    const heading = content.querySelector("h1");
    document.title = heading ? `${heading.textContent} – HAP-VR` : "HAP-VR search";
    if (heading && document.activeElement === document.body) {
      heading.tabIndex = -1;
      heading.focus({ preventScroll: true });
    }
  }
}

async function showIndex() {
  const notices = document.getElementById("notices");
  const line = document.getElementById("index");
  try {
    const index = await getIndex();
    line.textContent = index.videos ? `${number(index.videos)} videos` : "no collection yet";
    line.title = index.since ? `Model ${index.model}${index.untrained ? ", untrained" : ""}; index made ${index.since}, which finds ` +
      `${percent(index.recall, 1)} of the nearest frames` : "";
    keepWarnings(index.warnings ?? []);
    const told = notices.querySelectorAll(".passing");
    notices.replaceChildren(
      ...told,
      ...(index.problem ? [notice(plain({ error: index.problem }), "problem")] : []),
      ...(mayChange() ? [] : [notice(ONLY_READS, "quiet")]),
      ...(index.warnings ?? []).map((text) => notice(text.replaceAll("`", ""))),
    );
  } catch (error) {
    line.textContent = "";
    notices.replaceChildren(notice(error.message, "problem"));
  }
}

// A drop anywhere counts, on whatever view.
function acceptDrops() {
  const over = (is) => document.body.classList.toggle("over", is);
  const hasFiles = (event) => [...event.dataTransfer?.types ?? []].includes("Files");
  for (const kind of ["dragenter", "dragover"]) document.addEventListener(kind, (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(true);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) over(false); });
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(false);
    const folders = [...event.dataTransfer.items].filter((item) => item.webkitGetAsEntry?.()?.isDirectory).length;
    const files = [...event.dataTransfer.files];
    if (folders) {
      tell("That is a folder. Open it and drop the files in it.");
    } else if (files.length) offerFiles(files);
  });
}

acceptDrops();
window.addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after # is the view's
  document.getElementById("content").focus();
});
setInterval(showIndex, 30_000);
document.addEventListener("collection-changed", showIndex);
await showIndex();
route();
