// One mqtt.js client, driven by JSON lines: a request on stdin, its answer or a message on stdout.
"use strict";
const mqtt = require("mqtt");
const readline = require("node:readline");

const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
let client;

const actions = {
  connect({ port, version, clientId, clean, expiry }) {
    client = mqtt.connect({
      host: "127.0.0.1", port, clientId, clean,
      protocolVersion: version,
      protocolId: version === 3 ? "MQIsdp" : "MQTT",
      reconnectPeriod: 0,
      resubscribe: false,
      ...(version === 5 ? { properties: { sessionExpiryInterval: expiry } } : {}),
    });
    client.once("connect", (connack) => say({ sessionPresent: connack.sessionPresent }));
    client.on("message", (topic, payload, packet) =>
      say({ topic, payload: payload.toString(), qos: packet.qos }));
    client.on("error", (error) => say({ error: String(error) }));
  },
  subscribe({ filter, qos }) {
    client.subscribe(filter, { qos }, (error, granted, packet) =>
      say(error ? { error: String(error) } : { granted: packet.granted }));
  },
  publish({ topic, payload, qos }) {
    client.publish(topic, payload, { qos }, (error) => say(error ? { error: String(error) } : {}));
  },
  disconnect() {
    client.end(false, {}, () => { say({}); process.exit(0); });
  },
};

readline.createInterface({ input: process.stdin })
  .on("line", (line) => { const request = JSON.parse(line); actions[request.do](request); })
  .on("close", () => process.exit(0));
