/* Topics as a tree of their levels: who has subscribed, what is retained, what comes; and publish. */
import { get, post } from "../api.js";
import { badge, button, bytes, card, form, head, make, name, note, number, sheet, short, visible, without } from "../parts.js";
import { message } from "./retained.js";

const MOST = 1000;
const OPEN = 40;

/* What is known of each topic or filter, by its levels. */
function grown(entries) {
  const root = { below: new Map(), about: [] };
  for (const [topic, about] of entries) {
    let at = root;
    for (const level of topic.split("/")) {
      if (!at.below.has(level)) at.below.set(level, { below: new Map(), about: [] });
      at = at.below.get(level);
    }
    at.topic = topic;
    at.about.push(about);
  }
  return root;
}

const leaves = (node) => (node.topic === undefined ? 0 : 1) + [...node.below.values()].reduce((all, one) => all + leaves(one), 0);

/* The levels below a node; deep or wide ones are drawn when they are opened. */
function tree(node, label) {
  return make("ul", { class: "tree", "aria-label": label },
    [...node.below].sort(([one], [other]) => one.localeCompare(other)).map(([level, below]) => {
      const named = name(level === "" ? "(empty)" : level);
      const own = () => make("span", { class: "level" }, ...below.about);
      if (!below.below.size) return make("li", { class: "leaf" }, make("span", { class: "level" }, named, own()));
      const inner = make("div");
      const made = make("details", { ontoggle: () => { if (made.open && !inner.firstChild) inner.append(below.about.length ? own() : "", tree(below, visible(level))); } },
        make("summary", null, named, " ", make("small", { class: "soft" }, number(leaves(below)))), inner);
      if (leaves(below) <= OPEN) made.open = true;
      return make("li", null, made);
    }));
}

const topicOf = (one) => one.topic ?? one.topic_filter;

export async function topics(main, about) {
  const shown = make("div", { "aria-live": "polite" });
  const list = make("div");
  const look = (topic) => message(topic).then((made) => { shown.replaceChildren(made); made.scrollIntoView({ block: "nearest" }); }, about.failed);
  let asked = "#";
  const show = async ({ filter = "#" } = {}, busiest = null) => {
    asked = filter || "#";
    const [kept, filters, counted] = await Promise.all([get("/retained", { filter: asked, limit: MOST }),
      get("/topics", { limit: MOST }), get("/topic-metrics")]);
    const within = filter && filter !== "#" ? filter.replace(/[+#].*$/, "") : "";
    const entries = [
      ...kept.retained.map((one) => [one.topic, button(`retained, ${bytes(one.bytes)}`, () => look(one.topic), "small",
        { "aria-label": `retained, ${bytes(one.bytes)}, of ${visible(one.topic)}` })]),
      ...filters.topics.filter((one) => one.topic_filter.startsWith(within)).map((one) =>
        [one.topic_filter, badge(`${number(one.subscribers)} subscribed`)]),
      ...[...counted.topics, ...(busiest?.topics || [])].filter((one) => topicOf(one).startsWith(within)).map((one) =>
        [topicOf(one), badge(`${short(one.message_rate)}/s`, "good")])];
    list.replaceChildren(without(filters), kept.cursor || filters.cursor ? note(`Only the first ${number(MOST)} are shown: name a filter.`) : "",
      busiest?.others ? note(`${number(busiest.others)} further messages came on other topics.`) : "",
      entries.length ? tree(grown(entries), "Topics") : make("p", { class: "empty" }, "There are none."));
  };
  /* What comes while it is looked: the broker counts nothing by topic otherwise. */
  const measure = async () => show({ filter: asked }, await get("/topics/busiest", { topic_filter: asked, seconds: 2, limit: 100 }));
  main.append(head("Topics", "Retained messages and subscriptions, by the levels of their topics."), shown,
    make("div", { class: "cards" },
      make("div", null, card("Tree", form("Filter", [["filter", "Topic filter", "search", { value: "#" }]], "Show",
        (given) => show(given).catch(about.failed)), button("Measure rates for two seconds", () => measure().catch(about.failed)), make("br"), list)),
      about.may("operator") ? make("div", null, publish(about)) : ""));
  await show();
}

const hex = (text) => btoa(String.fromCharCode(...(text.replace(/[\s:]/g, "").match(/../g) || []).map((one) => {
  if (!/^[0-9a-f]{2}$/i.test(one)) throw new Error("Hex is pairs of the digits 0 to 9 and a to f.");
  return parseInt(one, 16);
})));

function publish(about) {
  const send = async (given) => {
    try {
      const properties = { content_type: given.content_type || undefined, response_topic: given.response_topic || undefined,
        message_expiry_interval: given.expiry };
      const set = Object.values(properties).some((one) => one !== undefined);
      const told = await post("/publish", { topic: given.topic, qos: Number(given.qos), retain: given.retain,
        ...(given.kind === "hex" ? { payload_base64: hex(given.payload) } : { payload: given.payload }), ...(set ? { properties } : {}) });
      about.say(told.receivers === 1 ? "Published: one subscriber gets it." : `Published: ${number(told.receivers)} subscribers get it.`);
    } catch (error) { about.failed(error); }
  };
  return card("Publish", form("Publish", [["topic", "Topic", "text", { required: true }], ["payload", "Payload", "textarea"],
    ["kind", "Payload is", [["text", "text"], ["hex", "hex"]]], ["qos", "QoS", ["0", "1", "2"]], ["retain", "retain", "checkbox"],
    ["expiry", "Expires after, in seconds", "number", { min: 0 }], ["content_type", "Content type"], ["response_topic", "Response topic"]],
  "Publish", send, "tall"), make("p", { class: "soft" }, "In the broker's own name: no access rule is asked, plugins are."));
}
