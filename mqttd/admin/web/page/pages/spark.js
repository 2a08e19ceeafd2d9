/* The event log that Spark reads: how long it is, who writes, who reads and how far behind that is. */
import { get, has, post } from "../api.js";
import { chart } from "../charts.js";
import { gauges, on, rates, readings } from "../live.js";
import { badge, button, bytes, card, facts, head, make, name, note, number, sheet, short, table, time } from "../parts.js";

const METRIC = "plugin_spark_";

export async function spark(main, about) {
  main.append(head("Spark", "The event log that pipelines read, exactly once."));
  const plugin = (await get("/plugins")).plugins.find((one) => one.name === "spark");
  if (!plugin || plugin.state !== "loaded") {
    main.append(note("The plugin spark, which writes the event log, is not loaded."),
      plugin && about.may("administrator") ? button("Load it", () => post("/plugins/spark/load").then(about.again, about.failed), "main") : "");
    return;
  }
  const tiles = make("div", { class: "tiles" });
  const lists = make("div");
  const times = () => readings.map((one) => one.at);
  const charts = [
    chart("Events", times, () => [{ label: "handed over", values: rates(`${METRIC}events_total`) },
      { label: "written", values: rates(`${METRIC}written_total`) }], (value) => `${short(value)}/s`),
    chart("Waits for the disk", times, () => [{ label: "bytes", values: gauges(`${METRIC}queue_bytes`) }], bytes, 1024)];
  const state = (group) => !group.this_log ? badge("of another log", "warn") : group.stopped ? badge("done")
    : Date.now() / 1000 - group.time > 60 ? badge("silent", "warn") : badge("reads", "good");
  const show = async () => {
    const found = await get("/plugins/spark/log/state").catch((error) => { if (error.status !== 404) throw error; return null; });
    if (!found) return lists.replaceChildren(note("Nothing was written yet."));
    const nodes = Object.entries(found.nodes).map(([node, one]) => ({ node, ...one }));
    const now = readings.at(-1)?.counters || {};
    const sum = (key) => nodes.reduce((all, one) => all + one[key], 0);
    const worst = found.groups.reduce((all, one) => Math.max(all, one.lag || 0), 0);
    tiles.replaceChildren(...[["Events kept", number(nodes.reduce((all, one) => all + one.latest - one.earliest, 0))], ["On disk", bytes(sum("bytes"))],
      ["Writers", number(nodes.length)], ["Groups", number(found.groups.length)], ["Largest lag", number(worst)],
      ["Lost", number(now[`${METRIC}dropped_total`] || 0)]].map(([label, value]) =>
      make("div", { class: "tile" }, make("span", null, label), make("b", null, value))));
    lists.replaceChildren(
      sheet("Groups", [], table("Groups", [["Group", (g) => name(g.group)], ["State", state], ["Behind", (g) => g.lag, "num"],
        ["Read up to", (g) => Object.entries(g.nodes).map(([node, at]) => `${node} ${number(at)}`).join(", ")],
        ["Heard of", (g) => time(g.time)]], found.groups)),
      sheet("Writers", [], table("Writers", [["Node", (n) => name(n.node)], ["First event", (n) => n.earliest, "num"], ["Next event", (n) => n.latest, "num"],
        ["Segments", (n) => n.segments, "num"], ["Size", (n) => bytes(n.bytes), "num"]], nodes)),
      card("Log", facts([["Id", found.log], ...Object.entries(now).filter(([key]) => key.startsWith(METRIC)).map(([key, value]) =>
        [key.slice(METRIC.length).replace(/_total$/, "").replaceAll("_", " "), key.includes("bytes") ? bytes(value) : value])])));
  };
  main.append(tiles, make("div", { class: "cards" }, charts), make("br"), lists);
  await show();
  let turn = 0;
  return on("counters", () => {
    for (const one of charts) one.draw();
    if ((turn += 1) % 5 === 0) show().catch(() => {});
  });
}
