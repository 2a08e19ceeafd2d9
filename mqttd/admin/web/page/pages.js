/* The pages: each fills `main`, and returns what ends it. */
import { ask, get, id } from "./api.js";
import "./charts.js";
import { bytes, card, form, make, pairs, table, time } from "./parts.js";

const may = (user, role) => {
  const order = ["events", "viewer", "operator", "administrator"];
  return order.indexOf(user.role) >= order.indexOf(role);
};
const client = (name) => make("a", { href: `#clients/${id(name)}` }, name);

export function overview(main) {
  const tiles = make("div", { class: "tiles" });
  const chart = (heading, series) => make("live-chart", { class: "card", heading, series });
  const charts = [chart("Connections", "connected"), chart("Messages a second", "in,out"),
    chart("Bytes a second", "in,out"), chart("Dropped a second", "dropped"),
    chart("Loop lag", "milliseconds"), chart("Memory", "MiB")];
  main.append(make("h1", null, "Overview"), tiles, make("div", { class: "cards" }, charts));
  let before = null;
  const events = new EventSource("/api/v1/events?kinds=counters");
  events.addEventListener("counters", (event) => {
    const { at, counters, gauges } = JSON.parse(event.data);
    tiles.replaceChildren(...[["connected", gauges.clients_connected], ["sessions", gauges.sessions],
      ["subscriptions", gauges.subscriptions], ["retained", gauges.retained_messages],
      ["alarms", gauges.alarms], ["memory", bytes(gauges.memory_used_bytes)]]
      .map(([name, value]) => make("div", { class: "tile" }, make("b", null, String(value)),
        make("span", null, name))));
    const rate = (name) => before
      ? ((counters[name] || 0) - (before.counters[name] || 0)) / Math.max(0.1, at - before.at) : 0;
    charts[0].add(at, gauges.clients_connected);
    charts[1].add(at, rate("messages_received"), rate("messages_sent"));
    charts[2].add(at, rate("bytes_received"), rate("bytes_sent"));
    charts[3].add(at, rate("dropped"));
    charts[4].add(at, gauges.loop_lag_ms);
    charts[5].add(at, gauges.memory_used_bytes / 1048576);
    before = { at, counters };
  });
  return () => events.close();
}

export async function clients(main, about) {
  if (about.rest.length) return one(main, about);
  const list = make("div");
  let wish = {};
  const show = async (cursor) => {
    const page = await get("/clients", { ...wish, limit: 50, cursor });
    list.replaceChildren(table("Clients", [["Client", (c) => client(c.client_id)],
      ["User", (c) => c.username], ["Connected", (c) => c.connected], ["Address", (c) => c.peerhost],
      ["Listener", (c) => c.listener], ["Subscriptions", (c) => c.subscriptions],
      ["In flight", (c) => c.inflight], ["Queued", (c) => c.mqueue]], page.clients),
    page.cursor ? make("p", null, make("button", { onclick: () => show(page.cursor).catch(about.failed) }, "Next page")) : "");
  };
  main.append(make("h1", null, "Clients"), form("Filter", [["prefix", "Client id begins with"],
    ["username", "User"], ["address", "Address or network"], ["state", "State", ["", "connected", "away"]],
    ["sort", "Order", ["client_id", "-mqueue_bytes", "-inflight", "-subscriptions", "-unsent_bytes"]]],
  "Show", (given) => { wish = given; show().catch(about.failed); }), card("", list));
  await show();
  const events = new EventSource("/api/v1/events?kinds=clients");
  let soon = 0;
  events.addEventListener("clients", () => {
    soon = soon || setTimeout(() => { soon = 0; show().catch(about.failed); }, 300);
  });
  return () => { clearTimeout(soon); events.close(); };
}

async function one(main, about) {
  const name = about.rest.join("/");
  const [found, subscribed] = await Promise.all(
    [get(`/clients/${id(name)}`), get("/subscriptions", { client_id: name })]);
  const end = (discard) => () =>
    ask("DELETE", `/clients/${id(name)}`, { discard }).then(about.again, about.failed);
  main.append(make("h1", null, name));
  if (may(about.user, "operator")) {
    main.append(make("p", null, make("button", { id: "kick", class: "bad", onclick: end("") }, "End its connection"),
      " ", make("button", { class: "bad", onclick: end("true") }, "End its session")));
  }
  main.append(make("div", { class: "cards" }, card("Session", pairs("Session", found)),
    card("Subscriptions", filters(subscribed.subscriptions))));
}

const filters = (rows) => table("Subscriptions", [["Client", (s) => client(s.client_id)],
  ["Filter", (s) => s.topic_filter], ["QoS", (s) => s.qos]], rows);

export async function subscriptions(main, about) {
  const list = make("div");
  const routes = make("div");
  const show = async (wish) => list.replaceChildren(
    filters((await get("/subscriptions", { ...wish, limit: 100 })).subscriptions));
  main.append(make("h1", null, "Subscriptions"),
    form("Who gets a topic", [["topic", "Topic"]], "Who gets it?", ({ topic }) =>
      get("/routes", { topic }).then((found) => routes.replaceChildren(card(`Routes of ${topic}`,
        table("Routes", [["Filter", (r) => r.topic_filter], ["Group", (r) => r.group],
          ["Receivers", (r) => r.receivers], ["Clients", (r) => r.clients.join(", ")]], found.routes))), about.failed)),
    routes, form("Filter", [["topic_filter", "Topic filter"], ["client_id", "Client"]], "Show",
      (wish) => show(wish).catch(about.failed)), card("", list));
  await show({});
}

export async function retained(main, about) {
  const list = make("div");
  const payload = make("div");
  const look = (topic) => get(`/retained/${id(topic)}`).then((found) => payload.replaceChildren(
    card(topic, make("pre", null, new TextDecoder().decode(
      Uint8Array.from(atob(found.payload_base64), (one) => one.charCodeAt(0)))))), about.failed);
  const show = async (wish) => {
    const page = await get("/retained", { ...wish, limit: 100 });
    list.replaceChildren(table("Retained messages", [
      ["Topic", (r) => make("button", { onclick: () => look(r.topic) }, r.topic)],
      ["QoS", (r) => r.qos], ["Bytes", (r) => r.bytes], ["From", (r) => r.publisher],
      ["Expires in", (r) => r.expires_in]], page.retained));
  };
  main.append(make("h1", null, "Retained messages"),
    form("Filter", [["filter", "Topic filter", "text", "#"]], "Show", (wish) => show(wish).catch(about.failed)),
    payload, card("", list));
  await show({});
}

export async function listeners(main) {
  const { listeners: found } = await get("/listeners");
  main.append(make("h1", null, "Listeners"), card("", table("Listeners", [["Listener", (l) => l.id],
    ["Address", (l) => `${l.host}:${l.port}`], ["State", (l) => l.state],
    ["Connections", (l) => `${l.connections} of ${l.max_connections}`],
    ["Certificate until", (l) => l.certificate_until]], found)));
}

export async function alarms(main, about) {
  const list = make("div");
  const columns = [["Alarm", (a) => a.name], ["What", (a) => a.text], ["Raised", (a) => time(a.raised_at)]];
  const show = async () => {
    const found = await get("/alarms");
    const clear = (a) => may(about.user, "operator") ? make("button", { onclick: () =>
      ask("DELETE", `/alarms/${id(a.name)}`).then(show, about.failed) }, "Take back") : "";
    list.replaceChildren(card("Raised", table("Raised", [...columns, ["", clear]], found.alarms)),
      card("Past", table("Past", [...columns, ["Cleared", (a) => time(a.cleared_at)]], found.past)));
  };
  main.append(make("h1", null, "Alarms"), list);
  await show();
  const events = new EventSource("/api/v1/events?kinds=alarms");
  events.addEventListener("alarms", () => show().catch(about.failed));
  return () => events.close();
}

export function access(main, about) {
  const told = make("div", { "aria-live": "polite" });
  main.append(make("h1", null, "Access"), form("Explain", [["client_id", "Client"], ["username", "User"],
    ["peerhost", "Address"], ["action", "Does", ["publish", "subscribe"]], ["topic", "Topic"]], "May it?",
  (question) => get("/acl/explain", question).then((found) => told.replaceChildren(
    card(found.allowed ? "Allowed" : "Denied", make("p", null, found.rule),
      table("Rules", [["Rule", (s) => s.rule], ["Why", (s) => s.matched ? "decides" : s.reason]],
        found.steps))), about.failed)), told);
}

export async function api(main) {
  const found = await get("/openapi.json");
  const rows = Object.entries(found.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, one]) => ({ method: method.toUpperCase(), path, ...one })));
  main.append(make("h1", null, "HTTP interface"), make("p", { class: "soft" },
    make("a", { href: "/api/v1/openapi.json" }, "OpenAPI 3.1"), " of ", found.info.version),
  card("", table("Routes", [["Request", (r) => `${r.method} ${r.path}`], ["What", (r) => r.summary],
    ["Parameters", (r) => (r.parameters || []).map((one) => one.name).join(", ")],
    ["For", (r) => r.description || "anybody"]], rows)));
}
