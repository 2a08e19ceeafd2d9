// mqtt.js logs in by SCRAM-SHA-256, checks the broker's signature, and does both again while
// connected. Arguments: port, user, password. Prints one JSON line; "result" is "ok" or the fault.
"use strict";
const crypto = require("node:crypto");
const mqtt = require("mqtt");

const [port, user, password] = process.argv.slice(2);
const METHOD = "SCRAM-SHA-256";
const hmac = (key, text) => crypto.createHmac("sha256", key).update(text).digest();
const sha256 = (data) => crypto.createHash("sha256").update(data).digest();
const steps = [];

const end = (result) => {
  process.stdout.write(JSON.stringify({ result, steps }) + "\n");
  process.exit(0);
};

// One exchange as the client sees it (RFC 5802).
class Scram {
  constructor() {
    this.bare = `n=${user},r=${crypto.randomBytes(18).toString("base64")}`;
    this.first = Buffer.from("n,," + this.bare);
  }
  final(challenge) {
    const text = challenge.toString();
    const fields = Object.fromEntries(
      text.split(",").map((part) => [part[0], part.slice(2)]));
    const salted = crypto.pbkdf2Sync(
      password, Buffer.from(fields.s, "base64"), Number(fields.i), 32, "sha256");
    const key = hmac(salted, "Client Key");
    const start = `c=biws,r=${fields.r}`;
    const signed = `${this.bare},${text},${start}`;
    const signature = hmac(sha256(key), signed);
    const proof = Buffer.from(key.map((byte, i) => byte ^ signature[i]));
    this.expected = "v=" + hmac(hmac(salted, "Server Key"), signed).toString("base64");
    return Buffer.from(`${start},p=${proof.toString("base64")}`);
  }
}

let scram = new Scram();
const client = mqtt.connect({
  host: "127.0.0.1", port: Number(port), clientId: "scram-js", protocolVersion: 5,
  reconnectPeriod: 0,
  properties: { authenticationMethod: METHOD, authenticationData: scram.first },
});

client.handleAuth = (packet, callback) => {
  steps.push(packet.reasonCode);
  if (packet.reasonCode === 0x18) {
    callback(null, {
      cmd: "auth", reasonCode: 0x18,
      properties: {
        authenticationMethod: METHOD,
        authenticationData: scram.final(packet.properties.authenticationData),
      },
    });
    return;
  }
  const data = packet.properties.authenticationData.toString();
  callback(null);
  end(data === scram.expected ? "ok" : "the broker's signature is wrong the second time");
};

client.on("connect", (connack) => {
  steps.push("connack");
  if (connack.properties.authenticationMethod !== METHOD) end("CONNACK without the method");
  if (connack.properties.authenticationData.toString() !== scram.expected)
    end("the broker's signature is wrong");
  client.subscribe("a", { qos: 1 }, () => client.publish("a", "x", { qos: 1 }));
});

client.on("message", () => {
  steps.push("message");
  scram = new Scram();
  client._sendPacket({
    cmd: "auth", reasonCode: 0x19,
    properties: { authenticationMethod: METHOD, authenticationData: scram.first },
  });
});

client.on("error", (error) => end(`refused: ${error.code}`));
client.on("close", () => end("closed"));
