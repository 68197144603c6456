// Which view an address shows. The address after # holds all that a view needs, so links and reloads work.

import { getIndex } from "./api.js";
import { element, notice, number, percent } from "./dom.js";
import { showDuplicates } from "./duplicates.js";
import { showMarks } from "./marks.js";
import { showPair } from "./pair.js";
import { showResults } from "./results.js";
import { showSearch } from "./search.js";
import { keepWarnings } from "./session.js";
import { showWatch } from "./watch.js";

const views = {
  "": { show: showSearch, tab: "search" },
  results: { show: showResults, tab: "search" },
  pair: { show: showPair, tab: "" },
  duplicates: { show: showDuplicates, tab: "duplicates" },
  marks: { show: showMarks, tab: "marks" },
  watch: { show: showWatch, tab: "watch" },
};

let leave = () => {};
let turn = 0;

async function route() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  const view = views[path] ?? views[""];
  const content = document.getElementById("content");
  const mine = ++turn;
  leave();
  leave = () => {};
  for (const link of document.querySelectorAll("nav a"))
    if (link.dataset.view === view.tab) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  const place = element("div", { class: "view" });
  content.replaceChildren(place);
  try {
    const left = await view.show(place, new URLSearchParams(values ?? ""));
    if (mine !== turn) left?.();
    else leave = left ?? leave;
  } catch (error) {
    place.replaceChildren(notice(error.message, "problem"), element("p", {}, element("a", { href: "#/" }, "New search")));
  }
  if (mine === turn) {
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
    line.textContent = index.videos ? `${number(index.videos)} videos · ${index.model}${index.untrained ? ", untrained" : ""}` : "no collection yet";
    line.title = index.since ? `made ${index.since}; finds ${percent(index.recall, 1)} of the nearest frames` : "";
    keepWarnings(index.warnings ?? []);
    notices.replaceChildren(
      ...(index.problem ? [notice(index.problem, "problem")] : []),
      ...(index.warnings ?? []).map((text) => notice(text)),
    );
  } catch (error) {
    line.textContent = "";
    notices.replaceChildren(notice(error.message, "problem"));
  }
}

window.addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part after # is the view's
  document.getElementById("content").focus();
});
setInterval(showIndex, 30_000);
await showIndex();
route();
