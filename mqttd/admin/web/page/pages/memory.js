/* What is held, by kind; who holds most; who reads slowly; what is on disk. */
import { get } from "../api.js";
import { badge, bytes, card, facts, head, make, name, note, number, sheet, span, table } from "../parts.js";
import { link } from "./clients.js";

export async function memory(main) {
  const shown = make("div");
  main.append(head("Memory", "What is held for clients, by kind, and who holds most."), shown);
  const show = async () => {
    const [found, slow, store] = await Promise.all([get("/memory"), get("/slow"), get("/store").catch(() => null)]);
    const kinds = Object.entries(found.kinds).filter(([, held]) => held > 0).sort((one, other) => other[1] - one[1]);
    const all = kinds.reduce((sum, [, held]) => sum + held, 0) || 1;
    const bar = make("div", { class: "bar", "aria-hidden": "true" }, kinds.map(([, held], at) => {
      const part = make("i");
      part.style.width = `${100 * held / all}%`;
      part.style.background = `var(--c${1 + at % 6})`;
      return part;
    }));
    shown.replaceChildren(found.step ? note(`The budget is exceeded: ${found.step}.`, "bad") : "",
      make("div", { class: "cards" },
        card("Account", facts([["Held for clients", `${bytes(found.used)} of ${bytes(found.budget)}`],
          ["", make("meter", { min: 0, max: found.budget, value: found.used, high: 0.85 * found.budget, "aria-label": "Share of the budget" })],
          ["Process has grown by", bytes(found.grown)], ["Not explained", bytes(found.unexplained)],
          ["Not yet logged in", bytes(found.unauthenticated)]])),
        card("By kind", bar, facts(kinds.map(([kind, held]) => [kind.replaceAll("_", " "), `${bytes(held)}, ${number(100 * held / all)} %`])))),
      sheet("Largest sessions", [], table("Largest sessions", [["Client", (s) => link(s.client_id)], ["User", (s) => s.username === null ? "–" : name(s.username)],
        ["State", (s) => s.connected ? badge("connected", "good") : badge("away")], ["Holds", (s) => bytes(s.bytes), "num"],
        ["Queued", (s) => bytes(s.queued), "num"], ["In flight", (s) => bytes(s.inflight), "num"],
        ["Subscriptions", (s) => s.subscriptions, "num"]], found.sessions)),
      make("div", { class: "cards" },
        sheet("Largest users", [], table("Largest users", [["User", (u) => name(u.username)], ["Holds", (u) => bytes(u.bytes), "num"]], found.users)),
        sheet("Slow subscribers", [], table("Slow subscribers", [["Client", (s) => link(s.client_id)], ["Takes nothing for", (s) => span(s.seconds), "num"],
          ["Not sent", (s) => bytes(s.unsent_bytes), "num"], ["Queued", (s) => s.queued, "num"]], slow.slow))),
      store ? card("Store", facts(Object.entries(store).map(([key, value]) =>
        [key.replaceAll("_", " "), key.endsWith("bytes") && typeof value === "number" ? (key === "max_bytes" && !value ? "no limit" : bytes(value)) : value]))) : "");
  };
  await show();
  const timer = setInterval(() => shown.contains(document.activeElement) || show().catch(() => {}), 5000);
  return () => clearInterval(timer);
}
