// The documentation that the service brings along. Text only ever becomes text: the marks of Markdown that it uses become elements.

import { element, headRow, scrollable } from "./dom.js";

export async function showHelp(place) {
  const answer = await fetch("same_footage.md");
  if (!answer.ok) throw new Error("This page is missing from the installation; docs/same_footage.md has it.");
  place.append(element("article", { class: "help" }, blocks((await answer.text()).split(/\n{2,}/))));
}

function blocks(texts) {
  return texts.map((text) => {
    const lines = text.trimEnd().split("\n");
    if (/^#/.test(text)) return heading(text);
    if (lines[0].startsWith("|")) return table(lines);
    if (/^ {4}/.test(text)) return element("pre", { tabIndex: 0 }, lines.map((line) => line.slice(4)).join("\n"));
    if (/^(-|\d+\.) /.test(text)) return list(text);
    return element("p", {}, inline(lines.join(" ")));
  });
}

function heading(text) {
  const level = text.match(/^#+/)[0].length;
  return element(level === 1 ? "h1" : "h2", {}, text.replace(/^#+ /, ""));
}

function table(lines) {
  const cells = (line) => line.split("|").slice(1, -1).map((cell) => inline(cell.trim()));
  return scrollable(`Table: ${lines[0].split("|").slice(1, -1).map((cell) => cell.trim()).filter(Boolean).join(", ")}`, element("table", {}, headRow(cells(lines[0])),
    element("tbody", {}, lines.slice(2).map((line) => element("tr", {}, cells(line).map((cell) => element("td", {}, cell)))))));
}

function list(text) {
  const items = text.split(/\n(?=- |\d+\. )/).map((item) => item.replace(/^(-|\d+\.) /, "").replace(/\n\s*/g, " "));
  return element(/^\d/.test(text) ? "ol" : "ul", {}, items.map((item) => element("li", {}, inline(item))));
}

// **strong**, `code` and [links](elsewhere), which are named only: other pages do not come with the service.
function inline(text) {
  return text.split(/(\*\*[^*]+\*\*|`[^`]+`|\[[^\]]+\]\([^)]+\))/).map((piece) => {
    if (piece.startsWith("**")) return element("strong", {}, piece.slice(2, -2));
    if (piece.startsWith("`")) return element("code", {}, piece.slice(1, -1));
    if (/^\[.+\]\(/.test(piece)) return piece.match(/^\[([^\]]+)\]/)[1];
    return piece;
  });
}
