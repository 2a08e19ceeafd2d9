/* Who must stay out, whatever it shows. */
import { ask, get, post } from "../api.js";
import { badge, button, form, head, make, name, sheet, table, time, visible } from "../parts.js";

/* What may be banned by hand; who is flapping is, as a client. */
const KINDS = [["client_id", "client id"], ["username", "user"], ["peerhost", "address or network"]];

export async function bans(main, about) {
  const list = make("div");
  const operator = about.may("operator");
  const lift = (b) => ask("DELETE", "/bans", { kind: b.kind, value: b.value }).then(show, about.failed);
  const add = (given, made) => post("/bans", { kind: given.kind, value: given.value, reason: given.reason,
    ...(given.hours ? { seconds: given.hours * 3600 } : {}) }).then((told) => {
    about.say(`Banned; ${told.ended} connections were ended.`);
    made.reset();
    return show();
  }, about.failed);
  const show = async () => {
    const { bans: found } = await get("/bans");
    list.replaceChildren(table("Bans", [["What", (b) => badge(KINDS.find(([kind]) => kind === b.kind)?.[1] || b.kind)], ["Who", (b) => name(b.value)],
      ["Reason", (b) => b.reason], ["Since", (b) => time(b.since)], ["Until", (b) => b.until === null ? "for ever" : time(b.until)],
      ["", (b) => operator ? button("Lift", () => lift(b), "small", { "aria-label": `Lift the ban of ${visible(b.value)}` }) : "", "acts"]], found));
  };
  main.append(head("Bans", "Who must stay out, whatever it shows. A new ban ends connections."), sheet("", [],
    operator ? form("Ban", [["kind", "What", KINDS], ["value", "Who", "text", { required: true }], ["reason", "Reason"],
      ["hours", "Hours, for ever if left out", "number", { min: 0.01, step: "any" }]], "Ban", add) : null, list));
  await show();
}
