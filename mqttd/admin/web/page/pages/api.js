/* Every request of the HTTP interface, by its own document. */
import { get } from "../api.js";
import { badge, button, form, head, make, sheet, table } from "../parts.js";

const COLOURS = { GET: "good", POST: "warn", PUT: "warn", DELETE: "bad" };

/* A link would not show what a request of this page does. */
function saved(name, told) {
  const href = URL.createObjectURL(new Blob([JSON.stringify(told, null, 1)], { type: "application/json" }));
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
}

export async function api(main) {
  const found = await get("/openapi.json");
  const rows = Object.entries(found.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, one]) => ({ method: method.toUpperCase(), path, ...one })));
  const list = make("div");
  const draw = ({ words = "" }) => list.replaceChildren(table("Routes", [["Method", (r) => badge(r.method, COLOURS[r.method])],
    ["Path", (r) => make("code", null, r.path)], ["What", (r) => r.summary],
    ["Parameters", (r) => (r.parameters || []).map((one) => one.name).join(", ")],
    ["For", (r) => r.description || "anybody"]], rows.filter((r) => `${r.path} ${r.summary}`.toLowerCase().includes(words.toLowerCase()))));
  main.append(head("HTTP interface", `${rows.length} requests.`, button("OpenAPI 3.1 document", () => saved("openapi.json", found))),
    sheet("", [], form("Filter", [["words", "Path or words", "search"]], "Show", draw), list));
  draw({});
}
