// The requests that the service answers, from its own description; nothing is loaded from elsewhere.

import { element, scrollable } from "./dom.js";

export async function showInterface(place) {
  const answer = await fetch("openapi.json");
  if (!answer.ok) throw new Error("The service does not describe its requests; docs/search.md does.");
  const { paths, info } = await answer.json();
  const requests = Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, asked]) => ({ path, method, asked })));
  place.append(element("article", { class: "help" },
    element("h1", {}, "Requests for programs"),
    element("p", {}, `${info.title} ${info.version}. Every answer is JSON unless it says otherwise; an error has a sentence (error), a code, and what ` +
      "people are told (plain). Where the service wants a token, send it as ", element("code", {}, "Authorization: Bearer TOKEN"), "."),
    element("p", {}, element("a", { href: "openapi.json" }, "openapi.json"), " has all of this for programs."),
    requests.map(described)));
}

function described({ path, method, asked }) {
  const parameters = asked.parameters ?? [];
  const bodies = Object.keys(asked.requestBody?.content ?? {});
  const answers = Object.keys(asked.responses ?? {}).filter((status) => status !== "default" && status !== "422");
  return element("section", { class: "card request" },
    element("h2", {}, element("code", {}, `${method.toUpperCase()} ${path}`)),
    asked.description && element("p", {}, asked.description.replaceAll("`", "")),
    parameters.length > 0 && scrollable(`Values of ${method} ${path}`, element("table", {}, element("tbody", {}, parameters.map((value) => element("tr", {},
      element("th", { scope: "row" }, element("code", {}, value.name)),
      element("td", {}, value.in === "path" ? "in the path" : value.required ? "wanted" : "optional"),
      element("td", {}, typeOf(value.schema ?? {}))))))),
    bodies.length > 0 && element("p", { class: "quiet" }, `Body: ${bodies.join(", or ")}`),
    element("p", { class: "quiet" }, `Answers: ${answers.join(", ")}`));
}

function typeOf(schema) {
  const kinds = (schema.anyOf ?? [schema]).filter((kind) => kind.type !== "null").map((kind) => kind.enum ? kind.enum.join(", ") : kind.type ?? "");
  const least = schema.default === undefined || schema.default === null || schema.default === "" ? "" : `, otherwise ${schema.default}`;
  return kinds.filter(Boolean).join(" or ") + least;
}
