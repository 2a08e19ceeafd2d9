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
const RETRY = 2000; // milliseconds until a connection that was lost is tried again
let again = null;

// Reason codes that a client of a page meets, in words (MQTT 5.0, 2.4, and CONNACK of 3.1.1).
const WORDS = {
  0x01: "protocol version not supported", 0x02: "client id not allowed",
  0x03: "server unavailable", 0x04: "bad user name or password", 0x05: "not authorized",
  0x80: "unspecified error", 0x81: "malformed packet", 0x82: "protocol error",
  0x83: "refused by the broker", 0x84: "protocol version not supported",
  0x85: "client id not allowed", 0x86: "bad user name or password", 0x87: "not authorized",
  0x88: "server unavailable", 0x89: "server busy", 0x8a: "banned", 0x8b: "server shutting down",
  0x8d: "keep alive timed out", 0x8e: "another connection has this client id",
  0x8f: "topic filter not allowed", 0x90: "topic not allowed", 0x95: "packet too large",
  0x97: "quota exceeded", 0x98: "ended by the administrator", 0x99: "payload has a wrong format",
  0x9a: "retained messages not allowed", 0x9b: "QoS not supported",
  0x9e: "shared subscriptions not allowed", 0xa1: "subscription identifiers not allowed",
  0xa2: "wildcards not allowed",
};

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
  dial();
}

function dial() {
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
  let was = false;
  mine.on("connect", () => {
    was = true;
    status("Connected", "connected");
    connected(true);
    again = null;
    for (const [filter, qos] of filters) mine.subscribe(filter, { qos });
  });
  mine.on("message", (topic, payload, packet) => {
    if (mine === client) show(topic, payload, packet);
  });
  let reason = "";
  let told = false; // by the broker: it would say so again
  mine.on("disconnect", (packet) => {
    told = packet.reasonCode !== 0x8b; // one that shuts down may come back
    reason = `the broker says: ${code(packet.reasonCode)}`;
  });
  mine.on("error", (error) => {
    told = told || Boolean(error.code);
    reason = error.code ? `the broker says: ${code(error.code)}` : error.message;
  });
  mine.on("close", () => {
    if (mine !== client) return;
    connected(false);
    if (was && !told) {
      status("Connection lost; connecting again …", "failed");
      $("disconnect-button").disabled = false;
      again = setTimeout(dial, RETRY);
      return;
    }
    if (again !== null && !told) {
      $("disconnect-button").disabled = false;
      again = setTimeout(dial, RETRY);
    }
    status(reason ? `Not connected: ${reason}` : "Not connected", reason ? "failed" : "");
  });
}

function code(number) {
  const shown = "0x" + Number(number || 0).toString(16).padStart(2, "0");
  return WORDS[number] ? `${WORDS[number]} (${shown})` : shown;
}

// What is wrong with a topic name or filter, "" for nothing (MQTT 5.0, 4.7).
function fault(topic, isFilter) {
  if (!topic) return "a topic has at least one character";
  if (topic.includes("\u0000")) return "a topic has no U+0000";
  if (new TextEncoder().encode(topic).length > 65535) return "a topic has at most 65535 bytes";
  if (!isFilter) return /[+#]/.test(topic) ? "a topic to publish to has no + or #" : "";
  const levels = topic.split("/");
  for (const [i, level] of levels.entries()) {
    if (level.length > 1 && /[+#]/.test(level)) return "+ and # stand for a whole level";
    if (level === "#" && i < levels.length - 1) return "# is the last level";
  }
  return "";
}

function end() {
  clearTimeout(again);
  again = null;
  if (client) client.end(true);
  client = null;
  connected(false);
  status("Not connected");
}

function subscribe(event) {
  event.preventDefault();
  const filter = $("filter").value;
  const qos = Number($("subscribe-qos").value);
  const wrong = fault(filter, true);
  if (wrong) {
    status(`Connected; not subscribed to ${filter}: ${wrong}`, "connected");
    return;
  }
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
  const wrong = fault(topic, false);
  if (wrong) {
    status(`Connected; not published: ${wrong}`, "connected");
    return;
  }
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
