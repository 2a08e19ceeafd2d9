/* Who has changed what. */
import { get } from "../api.js";
import { badge, head, make, name, pager, sheet, table, time, visible } from "../parts.js";

export async function audit(main, about) {
  const list = pager((cursor) => get("/audit", { limit: 50, cursor }).then((page) => ({ rows: page.audit, cursor: page.cursor })),
    (rows) => table("Changes", [["When", (a) => time(a.at)], ["Who", (a) => name(a.who)], ["Role", (a) => badge(a.role)], ["From", (a) => a.peer],
      ["What", (a) => make("span", null, visible(a.what), a.times > 1 ? ` (${a.times} times)` : "", make("br"), make("code", { class: "soft" }, `${a.method} ${visible(a.path)}`))],
      ["Before", (a) => a.before, "wrap"], ["After", (a) => a.after, "wrap"]], rows), about.failed);
  main.append(head("Audit", "Who has changed what since the start, the newest first; the file audit.jsonl has more."), sheet("", [], ...list.element));
  await list.first();
}
