/* Every counter with its rate, and every gauge, as they are told once a second. */
import { on, readings } from "../live.js";
import { get } from "../api.js";
import { card, form, head, make, name, number, sheet, table } from "../parts.js";

export async function metrics(main) {
  const shown = make("div");
  let wish = "";
  let now = { ...await get("/metrics"), at: 0 };
  const rate = (key) => {
    const before = readings.at(-2);
    if (!before || now.at <= before.at || now.at - before.at > 5) return "–";
    return number(Math.max(0, (now.counters[key] || 0) - (before.counters[key] || 0)) / (now.at - before.at));
  };
  const rows = (found) => Object.entries(found).filter(([key]) => key.includes(wish)).sort(([one], [other]) => one < other ? -1 : 1);
  const draw = () => {
    if (shown.contains(document.activeElement)) return;
    const places = [...shown.querySelectorAll(".scroll")].map((one) => one.scrollTop);
    shown.replaceChildren(
      sheet("Gauges", [], table("Gauges", [["What is there now", ([key]) => name(key)], ["Value", ([, value]) => number(value), "num"]],
        rows(now.gauges))),
      sheet("Counters", [], table("Counters", [["Counted since the start", ([key]) => name(key)], ["Value", ([, value]) => number(value), "num"],
        ["In a second", ([key]) => rate(key), "num"]], rows(now.counters))));
    shown.querySelectorAll(".scroll").forEach((one, at) => { one.scrollTop = places[at] || 0; });
  };
  main.append(head("Metrics", "Every figure of the broker. The reference says what each means; /metrics gives them to Prometheus."),
    card("Find", form("Find", [["name", "Part of a name", "search"]], "Show", ({ name: part }) => {
      wish = (part || "").trim().toLowerCase();
      document.activeElement?.blur();
      draw();
    })), shown);
  draw();
  return on("counters", (told) => { now = told; draw(); });
}
