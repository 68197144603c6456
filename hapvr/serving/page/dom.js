// Elements, and values as people read them. Text only ever becomes text: nothing here parses HTML.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else if (name in made && !name.includes("-") && name !== "list") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export function clock(seconds) {
  const rounded = Math.round(Math.max(seconds, 0) * 10) / 10;
  const whole = Math.floor(rounded);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const tenths = Math.round((rounded - whole) * 10);
  const tail = `${String(rest).padStart(2, "0")}${tenths ? `.${tenths}` : ""}`;
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${tail}` : `${minutes}:${tail}`;
}

// The number and its sign stay in one line.
export const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)}\u00a0%`;

// Only what is certain has 100.0 %.
export const probability = (value) => percent(value < 1 ? Math.min(value, 0.999) : 1, 1);

export function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${count} B`;
}

export const number = (value) => value.toLocaleString("en");

// What a screen reader says now.
export function say(text) {
  document.getElementById("said").textContent = text;
}

// The heads of a table's columns; of columns that need none for the eye, the names are for screen readers alone.
export const headRow = (names, unseen = []) => element("thead", {}, element("tr", {}, names.map((name) =>
  element("th", { scope: "col" }, unseen.includes(name) ? element("span", { class: "hidden" }, name) : name))));

// What may be wider than the screen, so that keys scroll it, too.
export const scrollable = (label, content) => element("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, content);

export function notice(text, kind = "warning") {
  return element("p", { class: `notice ${kind}` }, text);
}

// Said at the head of the page until another view is shown.
export function tell(text) {
  const head = document.getElementById("notices");
  head.querySelector(".passing")?.remove();
  head.prepend(notice(text, "warning passing"));
  say(text);
}

export const forgetTold = () => document.querySelector("#notices .passing")?.remove();

export const verdictClass = (verdict) => (verdict ?? "").replace(" ", "_");

export const markNames = { match: "match", not_a_match: "not a match" };

export const minute = (since) => since.slice(0, 16).replace("T", " ");

// The seconds of query and video in the middle of a part; none without one: many videos begin with black.
export const middle = (part) => part
  ? [(part.query_start_s + part.query_end_s) / 2, (part.reference_start_s + part.reference_end_s) / 2] : [null, null];

// Copies a text; where the browser does not allow that, it is selected for the reader to copy. what: the text is, e.g. "path"; of: whose.
export function copyButton(text, what, of) {
  const button = element("button", { type: "button", class: "small", "aria-label": `Copy the ${what} of ${of}`, title: text, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      say(`Copied ${text}`);
    } catch {
      const shown = element("textarea", { readOnly: true, rows: text.split("\n").length, value: text, "aria-label": what });
      button.replaceWith(shown);
      shown.select();
    }
  } }, `Copy ${what}`);
  return button;
}

// Where a file lies now, to be copied; nothing for those who may not know. compact: the button alone.
export const placeLine = (path, { compact = false } = {}) => path
  ? element("span", { class: "place quiet" }, !compact && element("span", { class: "path" }, path), copyButton(path, "path", path))
  : null;
