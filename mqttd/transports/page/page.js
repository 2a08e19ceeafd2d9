"use strict";
// The page on mqttd's WebSocket port: connect, subscribe, publish, see messages come.
// What arrives is shown as text, never as markup.

const MOST_ROWS = 500;
const LONGEST = 4000; // characters of a payload that are shown
const $ = (id) => document.getElementById(id);
let client = null;
let paused = false;
let count = 0;
const filters = new Map(); // topic filter -> QoS

function status(text, state = "") {
  $("status").textContent = text;
  $("status").dataset.state = state;
}

function connected(is) {
  $("connect-button").disabled = is;
  $("disconnect-button").disabled = !is;
  $("subscribe-button").disabled = !is;
  $("publish-button").disabled = !is;
}

function connect(event) {
  event.preventDefault();
  end();
  status("Connecting …");
  const username = $("username").value;
  client = mqtt.connect($("url").value, {
    clientId: $("client-id").value,
    username: username || undefined,
    password: username ? $("password").value : undefined,
    protocolVersion: Number($("version").value),
    clean: true,
    resubscribe: false,
    reconnectPeriod: 0,
    connectTimeout: 10000,
    timerVariant: "native",
  });
  const mine = client;
  mine.on("connect", () => {
    status("Connected", "connected");
    connected(true);
    for (const [filter, qos] of filters) mine.subscribe(filter, { qos });
  });
  mine.on("message", (topic, payload, packet) => {
    if (mine === client) show(topic, payload, packet);
  });
  let reason = "";
  mine.on("disconnect", (packet) => { reason = `the broker says ${code(packet.reasonCode)}`; });
  mine.on("error", (error) => { reason = error.message; });
  mine.on("close", () => {
    if (mine !== client) return;
    status(reason ? `Not connected: ${reason}` : "Not connected", reason ? "failed" : "");
    connected(false);
  });
}

function code(number) {
  return "0x" + Number(number || 0).toString(16).padStart(2, "0");
}

function end() {
  if (client) client.end(true);
  client = null;
  connected(false);
  status("Not connected");
}

function subscribe(event) {
  event.preventDefault();
  const filter = $("filter").value;
  const qos = Number($("subscribe-qos").value);
  client.subscribe(filter, { qos }, (error, granted) => {
    const refused = granted && granted.find((each) => each.qos >= 128);
    if (error || refused) {
      status(`Connected; not subscribed to ${filter}: ${error ? error.message : code(refused.qos)}`,
        "connected");
      return;
    }
    filters.set(filter, qos);
    list();
  });
}

function list() {
  const items = [...filters].map(([filter, qos]) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = `${filter} (QoS ${qos}) ✕`;
    button.setAttribute("aria-label", `Unsubscribe from ${filter}`);
    button.addEventListener("click", () => {
      filters.delete(filter);
      if (client && client.connected) client.unsubscribe(filter);
      list();
    });
    item.append(button);
    return item;
  });
  $("subscriptions").replaceChildren(...items);
}

function publish(event) {
  event.preventDefault();
  const topic = $("topic").value;
  const options = { qos: Number($("publish-qos").value), retain: $("retain").checked };
  client.publish(topic, $("payload").value, options, (error) => {
    status(error ? `Connected; not published: ${error.message}` : `Connected; published to ${topic}`,
      "connected");
  });
}

function text(payload) {
  try {
    const whole = new TextDecoder("utf-8", { fatal: true }).decode(payload);
    return whole.length > LONGEST ? `${whole.slice(0, LONGEST)} … ${payload.length} bytes` : whole;
  } catch {
    const hex = [...payload.slice(0, 256)].map((b) => b.toString(16).padStart(2, "0")).join(" ");
    return `${hex}${payload.length > 256 ? " …" : ""} (${payload.length} bytes)`;
  }
}

function show(topic, payload, packet) {
  count += 1;
  $("count").textContent = String(count);
  if (paused) return;
  const row = document.createElement("tr");
  const time = new Date().toLocaleTimeString();
  for (const each of [time, topic, packet.qos, packet.retain ? "yes" : "", text(payload)]) {
    const cell = document.createElement("td");
    cell.textContent = String(each);
    row.append(cell);
  }
  const body = $("messages");
  body.prepend(row);
  while (body.childElementCount > MOST_ROWS) body.lastElementChild.remove();
}

$("url").value = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${document.documentElement.dataset.path}`;
$("client-id").value = `page-${Math.random().toString(36).slice(2, 10)}`;
$("connect").addEventListener("submit", connect);
$("disconnect-button").addEventListener("click", end);
$("subscribe").addEventListener("submit", subscribe);
$("publish").addEventListener("submit", publish);
$("clear-button").addEventListener("click", () => {
  $("messages").replaceChildren();
  count = 0;
  $("count").textContent = "0";
});
$("pause-button").addEventListener("click", () => {
  paused = !paused;
  $("pause-button").setAttribute("aria-pressed", String(paused));
});
