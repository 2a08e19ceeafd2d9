/* Every request of the HTTP interface, by its own document. */
import { get } from "../api.js";
import { badge, form, head, make, sheet, table } from "../parts.js";

const COLOURS = { GET: "good", POST: "warn", PUT: "warn", DELETE: "bad" };

export async function api(main) {
  const found = await get("/openapi.json");
  const rows = Object.entries(found.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, one]) => ({ method: method.toUpperCase(), path, ...one })));
  const list = make("div");
  const draw = ({ words = "" }) => list.replaceChildren(table("Routes", [["Method", (r) => badge(r.method, COLOURS[r.method])],
    ["Path", (r) => make("code", null, r.path)], ["What", (r) => r.summary],
    ["Parameters", (r) => (r.parameters || []).map((one) => one.name).join(", ")],
    ["For", (r) => r.description || "anybody"]], rows.filter((r) => `${r.path} ${r.summary}`.toLowerCase().includes(words.toLowerCase()))));
  main.append(head("HTTP interface", make("span", null, `${rows.length} requests. `, make("a", { href: "/api/v1/openapi.json" }, "OpenAPI 3.1 document"))),
    sheet("", [], form("Filter", [["words", "Path or words", "search"]], "Show", draw), list));
  draw({});
}
