/* One client: its connection and session, its rates, what it has subscribed to, and what is done to it. */
import { ask, get, id, post } from "../api.js";
import { chart } from "../charts.js";
import { asked, badge, button, bytes, card, facts, form, head, make, name, note, number, sheet, short, span, table, time,
  visible } from "../parts.js";

const KEPT = 300;

export async function client(main, about, client_id) {
  const path = `/clients/${id(client_id)}`;
  let found = await get(path).catch((error) => { if (error.status !== 404) throw error; });
  const operator = about.may("operator");
  const done = (text) => () => { about.say(text); return about.again(); };
  const act = (title, text, label, work, fields) => async () => {
    const given = await asked(title, text, label, { bad: true, fields });
    if (given) await work(given).then(done(`${title}: done.`), about.failed);
  };
  const ban = act("Ban this client", "It is disconnected and does not come in again.", "Ban", (given) =>
    post("/bans", { kind: "client_id", value: client_id, reason: given.reason,
      ...(given.seconds ? { seconds: given.seconds } : {}) }),
  [["reason", "Reason"], ["seconds", "Seconds, for ever if left out", "number", { min: 1 }]]);
  const actions = !operator ? [] : [
    button("Kick", () => ask("DELETE", path).then(done("Its connection was ended."), about.failed), "bad", { id: "kick",
      disabled: !found || !found.connected }),
    button("End session", act("End this session", "Its subscriptions and all that waits for it are gone.", "End session",
      () => ask("DELETE", path, { discard: true })), "bad", { disabled: !found }),
    button("Ban …", ban, "bad")];
  main.append(head(visible(client_id), make("a", { href: "#clients" }, "All clients"), ...actions));
  if (!found) return void main.append(note("There is no client of this id, connected or away."));

  const past = [];
  const times = () => past.map((one) => one.at);
  const rate = (key) => past.map((one, at) => at ? Math.max(0, one[key] - past[at - 1][key]) / (one.at - past[at - 1].at) : null);
  const charts = [
    chart("Bytes", times, () => [{ label: "in", values: rate("bytes_received") }, { label: "out", values: rate("bytes_sent") }],
      (value) => `${bytes(value)}/s`, 256),
    chart("Waiting", times, () => [{ label: "queued", values: past.map((one) => one.mqueue) },
      { label: "in flight", values: past.map((one) => one.inflight) }], short, 5)];
  const one = make("div", { class: "cards" });
  const draw = () => one.replaceChildren(
    card("Connection", facts([
      ["State", found.connected ? badge("connected", "good") : badge(`away for ${span(found.away)}`)],
      ["User", found.username === null ? "nobody's" : name(found.username)],
      found.superuser && ["Rights", badge("superuser", "warn")],
      found.node !== undefined && ["Node", name(found.node)],
      ["Address", found.peerhost ? `${found.peerhost}, port ${found.peerport}` : "–"],
      ["Listener", found.listener],
      found.mountpoint && ["Mountpoint", name(found.mountpoint)],
      ["Protocol", found.protocol_version && `MQTT ${{ 3: "3.1", 4: "3.1.1", 5: "5.0" }[found.protocol_version] || found.protocol_version}`],
      ["Since", time(found.connected_at)],
      ["Keep alive", found.connected ? span(found.keep_alive) : "–"], ["Silent for", span(found.idle)],
      ["Last reason", found.last_reason]])),
    card("Session", facts([
      ["Age", span(found.session_age)], ["Expires after", span(found.session_expiry_interval)],
      ["Clean start", found.clean_start], ["Subscriptions", found.subscriptions],
      ["Queued", `${number(found.mqueue)}, ${bytes(found.mqueue_bytes)}`], ["In flight", found.inflight],
      ["QoS 2 not released", found.awaiting_rel], ["Not yet sent", bytes(found.unsent_bytes)],
      ["Dropped", found.messages_dropped], ["Received from it", `${number(found.messages_received)} messages`],
      ["Will", found.will]])));
  draw();
  const filters = make("div");
  const subscribed = async () => {
    const { subscriptions } = await get("/subscriptions", { client_id });
    filters.replaceChildren(table("Subscriptions", [["Filter", (s) => name(s.topic_filter)], ["QoS", (s) => s.qos, "num"],
      ["Options", (s) => [s.no_local && "no local", s.retain_as_published && "retain as published",
        s.subscription_identifier && `identifier ${s.subscription_identifier}`].filter(Boolean).join(", ")],
      ["", (s) => operator ? button("Unsubscribe", () => ask("DELETE", "/subscriptions", { client_id, topic_filter: s.topic_filter })
        .then(subscribed, about.failed), "small bad", { "aria-label": `Unsubscribe ${visible(s.topic_filter)}` }) : "", "acts"]],
    subscriptions));
  };
  main.append(one, make("div", { class: "cards" }, charts), sheet("Subscriptions", [], operator ? form("Subscribe",
    [["topic_filter", "Topic filter", "text", { required: true }], ["qos", "QoS", ["0", "1", "2"]]], "Subscribe",
    (given) => post("/subscriptions", { client_id, topic_filter: given.topic_filter, qos: Number(given.qos) })
      .then(subscribed, about.failed)) : null, filters));
  await subscribed();
  const ends = [await trace(main, about, client_id)];

  let timer = 0;
  const look = async () => {
    const at = Date.now() / 1000;
    const next = await get(path).catch((error) => { if (error.status === 404) return null; });
    if (next === null) return about.again();
    if (next) {
      if (next.connected !== found.connected) return about.again();
      if (next.connected_at !== found.connected_at) past.length = 0;
      found = next;
      past.push({ at, ...next });
      if (past.length > KEPT) past.shift();
      draw();
      for (const made of charts) made.draw();
    }
    timer = setTimeout(look, 1000);
  };
  timer = setTimeout(look, 0);
  return () => { clearTimeout(timer); timer = -1; for (const end of ends) end(); };
}

/* What it does, by the plugin `trace`. */
async function trace(main, about, client_id) {
  let timer = 0;
  const end = () => clearTimeout(timer);
  if (!about.may("administrator")) return end;
  const plugin = (await get("/plugins")).plugins.find((one) => one.name === "trace");
  if (!plugin) return end;
  const words = (argv) => post(`/plugins/trace/commands/${argv[0]}`, { argv: argv.slice(1) }).then((told) => told.output);
  const called = "page-" + [...new TextEncoder().encode(client_id)].slice(0, 24)
    .map((one) => /[A-Za-z0-9]/.test(String.fromCharCode(one)) ? String.fromCharCode(one) : "-").join("");
  const lines = make("pre", { class: "box", tabindex: 0, role: "region", "aria-label": "Lines of the trace" });
  const buttons = make("div", { class: "row" });
  const look = async () => {
    lines.textContent = visible(await words(["show", called, "200"]).catch((error) => error.message)).replaceAll("\\u{a}", "\n");
    lines.scrollTop = lines.scrollHeight;
    timer = setTimeout(look, 1000);
  };
  const draw = (running) => {
    buttons.replaceChildren(running
      ? button("Stop", () => words(["stop", called]).then(() => { end(); draw(false); }, about.failed), "bad", { id: "trace-stop" })
      : button("Start", async () => {
        if (plugin.state !== "loaded") await post("/plugins/trace/load");
        plugin.state = "loaded";
        await words(["start", called, `client=${client_id}`]);
        draw(true);
        return look();
      }, "", { id: "trace-start" }));
    if (running) lines.hidden = false;
  };
  lines.hidden = true;
  const running = plugin.state === "loaded" && (await words(["list"])).split("\n").some((one) =>
    one.startsWith(`${called}  client=`));
  draw(running);
  if (running) look();
  main.append(card("Trace", make("p", { class: "soft" },
    "Everything that it does and gets, as lines of a file of its own; ends by itself after half an hour."), buttons, lines));
  return end;
}
