/* Retained messages: found by filter, shown with their payload, forgotten. */
import { ask, get, id } from "../api.js";
import { asked, badge, button, bytes, card, facts, form, head, make, name, pager, payload, sheet, span, table,
  visible } from "../parts.js";
import { link } from "./clients.js";

/* One retained message with what it holds. */
export async function message(topic) {
  const found = await get(`/retained/${id(topic)}`);
  const held = payload(found.payload_base64);
  return card(visible(found.topic), facts([["From", found.publisher ? link(found.publisher) : "the broker"], ["User", found.username],
    ["QoS", found.qos], ["Expires in", span(found.expires_in)],
    ["Payload", make("span", null, badge(held.kind), ` ${bytes(held.size)}`)]]),
  make("br"), make("pre", { class: "box", tabindex: 0, role: "region", "aria-label": "Payload" },
    held.text.slice(0, 100000) + (held.text.length > 100000 ? "\n…" : "")));
}

export async function retained(main, about) {
  const shown = make("div", { "aria-live": "polite" });
  let wish = { filter: "#" };
  const look = (topic) => message(topic).then((made) => { shown.replaceChildren(made); made.scrollIntoView({ block: "nearest" }); },
    about.failed);
  const forget = async (filter) => {
    const dry = await ask("DELETE", "/retained", { filter, dry_run: true }).catch(about.failed);
    if (!dry) return;
    const sample = dry.topics?.slice(0, 8).map(visible).join("\n");
    const sure = await asked("Forget retained messages", make("div", null,
      make("p", null, `${dry.count ?? dry.messages ?? ""} messages of ${visible(filter)} are forgotten for good.`),
      sample ? make("pre", { class: "box" }, sample) : null), "Forget", { bad: true });
    if (sure) await ask("DELETE", "/retained", { filter }).then(() => { shown.replaceChildren(); return list.first(); }, about.failed);
  };
  const operator = about.may("operator");
  const list = pager(
    (cursor) => get("/retained", { ...wish, limit: 100, cursor }).then((page) => ({ rows: page.retained, cursor: page.cursor })),
    (rows) => table("Retained messages", [["Topic", (r) => name(r.topic)],
      ["QoS", (r) => r.qos, "num"], ["Size", (r) => bytes(r.bytes), "num"], ["From", (r) => r.publisher ? name(r.publisher) : "the broker"],
      ["Expires in", (r) => span(r.expires_in)],
      ["", (r) => make("span", { class: "row" }, button("Show", () => look(r.topic), "small", { "aria-label": `Show ${visible(r.topic)}` }),
        operator ? button("Forget", () => forget(r.topic), "small bad", { "aria-label": `Forget ${visible(r.topic)}` }) : ""), "acts"]], rows),
    about.failed);
  main.append(head("Retained messages", "The last message of a topic, for who subscribes later.",
    operator ? button("Forget these …", () => forget(wish.filter), "bad") : null), shown,
  sheet("", [], form("Filter", [["filter", "Topic filter", "search", { value: "#", required: true }]], "Show",
    (given) => { wish = given; return list.first(); }), ...list.element));
  await list.first();
}
