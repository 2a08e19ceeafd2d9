/* What became of a message: found by client, topic, time or id; its life step by step; who is followed. */
import { ask, get, id, post } from "../api.js";
import { badge, button, bytes, card, facts, form, head, make, name, note, number, pager, sheet, table, time, visible } from "../parts.js";
import { link } from "./clients.js";

const STATES = { lost: "bad", refused: "bad", acked: "good", sent: "good", queued: "warn" };
const KEPT = { held: ["held by a plugin", "warn"], retained: ["retained", "good"] };
const words = (text) => text.replaceAll("_", " ");
const exact = (seconds) => `${time(seconds)}.${String(Math.round(seconds * 1e6) % 1e6).padStart(6, "0")}`;

export async function why(main, about) {
  if (about.rest[0]) return one(main, about, about.rest[0]);
  let wish = { lost: true };
  const unrecorded = make("div");
  const list = pager(async (cursor) => {
    const found = await get("/why", { ...wish, limit: 50, cursor });
    const more = Object.entries(found.unrecorded);
    unrecorded.replaceChildren(more.length ? note("Too many at once to keep each: "
      + more.map(([reason, count]) => `${number(count)} ${words(reason)}`).join(", ") + ".") : "");
    return { rows: found.messages, cursor: found.cursor };
  }, (rows) => table("Messages", [["When", (m) => make("a", { href: `#why/${m.id}` }, exact(m.at))], ["Topic", (m) => name(m.topic)],
    ["From", (m) => m.client_id ? link(m.client_id) : "the broker"], ["QoS", (m) => m.qos, "num"], ["Size", (m) => bytes(m.bytes), "num"],
    ["What became of it", (m) => make("span", { class: "row" }, ...(m.lost.length ? m.lost.map((reason) => badge(words(reason), "bad"))
      : [badge(...(KEPT[m.steps.at(-1).what] || ["delivered", "good"]))])), "wrap"]], rows), about.failed);
  main.append(head("Message lookup", "Why a message did not arrive. Lost ones are always kept, others if they are followed or sampled."),
    sheet("", [], form("Find", [["message_id", "Message id", "search"], ["client_id", "Client, from or to", "search"], ["topic", "Topic or filter", "search"],
      ["minutes", "In the last minutes", "number", { min: 1 }], ["lost", "lost ones alone", "checkbox", { value: true }]], "Find", (given) => {
      if (given.message_id) { location.hash = `#why/${id(given.message_id.trim())}`; return; }
      wish = { client_id: given.client_id, topic: given.topic, lost: given.lost, since: given.minutes && Math.floor(Date.now() / 1000 - 60 * given.minutes) };
      return list.first();
    }), unrecorded, ...list.element));
  await list.first();
  main.append(await followed(about));
}

async function one(main, about, message_id) {
  const found = await get(`/why/${id(message_id)}`);
  main.append(head(visible(found.topic), make("a", { href: "#why" }, "All messages")),
    ...found.answer.map((text) => note(visible(text), found.lost.length ? "bad" : "good")),
    card("Message", facts([["Id", make("code", null, found.id)], ["Topic", name(found.topic)], ["From", found.client_id ? link(found.client_id) : "the broker"],
      ["User", found.username], ["QoS", found.qos], ["Payload", bytes(found.bytes)], ["Published", exact(found.at)]])),
    sheet("Receivers", [], table("Receivers", [["Client", (r) => link(r.client_id)], ["State", (r) => badge(r.state, STATES[r.state])],
      ["Reason", (r) => words(r.reason)], ["More", (r) => r.detail, "wrap"]], found.receivers)),
    sheet("Step by step", [], table("Steps", [["When", (s) => exact(s.at)], ["What", (s) => badge(s.what, STATES[s.what])],
      ["For", (s) => s.receiver ? link(s.receiver) : ""], ["Reason", (s) => words(s.reason || "")], ["More", more, "wrap"]], found.steps)));
}

const more = (s) => [s.detail, s.rule && `rule: ${s.rule}`, ...(s.hooks || []).map(([owner, said]) => `${owner}: ${said}`),
  ...(s.filters || []).map((one) => `${one.topic_filter}${one.group ? `, group ${one.group}` : ""}: ${one.receivers}`),
  s.traceparent && `trace ${s.traceparent}`].filter(Boolean).join("; ");

async function followed(about) {
  const list = make("div");
  const operator = about.may("operator");
  const show = async () => {
    const told = await get("/trace");
    list.replaceChildren(table("Followed", [["Kind", (t) => badge(t.kind)], ["Who", (t) => name(t.value)],
      ["Until", (t) => t.until === null ? "for ever" : time(t.until)], ["By", (t) => t.configured ? "the configuration" : "an operator"],
      ["", (t) => operator && !t.configured ? button("End", () => ask("DELETE", "/trace", { kind: t.kind, value: t.value }).then(show, about.failed), "small",
        { "aria-label": `Follow ${visible(t.value)} no more` }) : "", "acts"]], told.traced));
  };
  try { await show(); } catch (error) {
    if (error.status !== 404) throw error;
    return note(visible(error.message));
  }
  return sheet("Followed from hand to hand", [], operator ? form("Follow", [["kind", "Kind", ["client", "topic"]],
    ["value", "Client id or topic filter", "text", { required: true }], ["minutes", "Minutes", "number", { min: 1, value: 30 }]], "Follow",
  ({ kind, value, minutes }) => post("/trace", { kind, value, ...(minutes ? { seconds: minutes * 60 } : {}) }).then(show, about.failed)) : null, list);
}
