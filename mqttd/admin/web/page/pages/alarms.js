/* Alarms that are raised, and those that were. */
import { ask, get, id } from "../api.js";
import { on } from "../live.js";
import { badge, button, head, make, sheet, span, table, time } from "../parts.js";

export async function alarms(main, about) {
  const list = make("div", { "aria-live": "polite" });
  const clear = (a) => about.may("operator") ? button("Clear", () =>
    ask("DELETE", `/alarms/${id(a.name)}`).then(show, about.failed), "small", { "aria-label": `Clear ${a.name}` }) : "";
  const show = async () => {
    const found = await get("/alarms");
    list.replaceChildren(
      sheet("Raised", [], table("Raised", [["Alarm", (a) => badge(a.name, "bad")], ["What", (a) => a.text],
        ["Since", (a) => time(a.raised_at)], ["Times", (a) => a.count, "num"], ["", clear, "acts"]], found.alarms)),
      sheet("Past", [], table("Past", [["Alarm", (a) => badge(a.name)], ["What", (a) => a.text], ["Raised", (a) => time(a.raised_at)],
        ["Lasted", (a) => span(a.cleared_at - a.raised_at)], ["Times", (a) => a.count, "num"]], found.past)));
  };
  main.append(head("Alarms", "What an operator should look at. One that is cleared is raised again while its cause is there."), list);
  await show();
  return on("alarms", () => show().catch(about.failed));
}
