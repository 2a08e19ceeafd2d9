/* How the broker does, as it goes. */
import { get } from "../api.js";
import { gauges, on, rates, readings } from "../live.js";
import { chart } from "../charts.js";
import { bytes, head, make, number, short, span, workers } from "../parts.js";

const KINDS = 6;
const words = (name) => name.replaceAll("_", " ");

/* The largest of those counters or gauges of one family that are not 0, the others together. */
function family(of, begins, ends, values) {
  const last = readings.at(-1);
  if (!last) return [];
  const names = Object.keys(last[of]).filter((one) => one.startsWith(begins) && one.endsWith(ends) && last[of][one] > 0)
    .sort((one, other) => last[of][other] - last[of][one]);
  const label = (name) => words(name.slice(begins.length, name.length - ends.length));
  const first = names.slice(0, names.length > KINDS ? KINDS - 1 : KINDS);
  const lines = first.map((name) => ({ label: label(name), values: values([name]) }));
  const rest = names.slice(first.length);
  if (rest.length) lines.push({ label: "other", values: values(rest) });
  return lines;
}

export function overview(main) {
  const tiles = make("div", { class: "tiles" });
  const below = make("div");
  const times = () => readings.map((one) => one.at);
  const perSecond = (value) => `${short(value)}/s`;
  const line = (label, values) => ({ label, values });
  const charts = [
    chart("Messages", times, () => [line("in", rates("messages_received")), line("out", rates("messages_sent"))], perSecond),
    chart("Connections", times, () => [line("connected", gauges("clients_connected"))], short, 5),
    chart("Bytes", times, () => [line("in", rates("bytes_received")), line("out", rates("bytes_sent"))],
      (value) => `${bytes(value)}/s`, 1024),
    chart("Dropped, by reason", times, () => {
      const found = family("counters", "dropped_", "", (names) => rates(...names));
      return found.length ? found : [line("dropped", rates("dropped"))];
    }, perSecond),
    chart("Held in memory, by kind", times, () => {
      const found = family("gauges", "memory_held_", "_bytes", (names) =>
        readings.map((one) => names.reduce((all, name) => all + (one.gauges[name] || 0), 0)));
      return found.length ? found : [line("held", gauges("memory_used_bytes"))];
    }, bytes, 1 << 20),
    chart("Processor and loop", times, () => [
      line("CPU %", rates("cpu_seconds").map((one) => one == null ? null : 100 * one)),
      line("loop lag ms", gauges("loop_lag_ms"))], short, 10),
  ];
  main.append(head("Overview", "The last ten minutes, as they come."), tiles, make("div", { class: "cards" }, charts), below);

  const tile = (href, label, value, more, alert) => make("a", { class: alert ? "tile alert" : "tile", href },
    make("span", null, label), make("b", null, value), more ? make("small", null, more) : null);
  const draw = () => {
    const last = readings.at(-1);
    if (!last) return;
    const { gauges: now } = last;
    const latest = (name) => perSecond(rates(name).at(-1) || 0);
    tiles.replaceChildren(
      tile("#clients", "Connected", number(now.clients_connected), `${number(now.sessions)} sessions`),
      tile("#subscriptions", "Subscriptions", number(now.subscriptions), `${number(now.shared_groups)} shared groups`),
      tile("#retained", "Retained", number(now.retained_messages), bytes(now.retained_bytes)),
      tile("#topics", "Messages in", latest("messages_received"), `${latest("messages_sent")} out`),
      tile("#memory", "Memory held", bytes(now.memory_used_bytes), `${number(now.slow_connections)} slow subscribers`),
      tile("#alarms", "Alarms", number(now.alarms), `up ${span(now.uptime_seconds)}`, now.alarms > 0));
    for (const one of charts) one.draw();
  };
  /* Of a broker that has several. */
  const share = async () => {
    const found = (await get("/status")).workers;
    below.replaceChildren(found ? workers(found) : "");
    return found;
  };
  let timer = 0;
  const again = () => share().then((found) => { if (found && timer >= 0) timer = setTimeout(again, 5000); }, () => {});
  draw();
  again();
  const off = on("counters", draw);
  return () => { clearTimeout(timer); timer = -1; off(); };
}
