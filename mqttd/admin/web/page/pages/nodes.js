/* This broker, its workers, and the other nodes of its cluster. */
import { get, has } from "../api.js";
import { badge, card, facts, head, make, name, note, number, sheet, span, table, workers } from "../parts.js";

const STATES = { member: "good", starting: "warn", minority: "bad", put_out: "bad", etcd_older: "bad" };

/* Which member of etcd is asked, or why none answers. */
const etcd = ({ etcd: asked, etcd_silent: silent, etcd_errors: errors }) => silent === null ? asked :
  `silent for ${number(Math.round(silent))} s: ${errors.map((one) => `${one.endpoint}: ${one.reason}`).join("; ")}`;

export async function nodes(main) {
  const shown = make("div");
  main.append(head("Nodes", "This broker, its workers where it has several, and the other nodes of its cluster."), shown);
  const show = async () => {
    const [found, status, cluster] = await Promise.all([get("/nodes"), get("/status"),
      has("/cluster").then((there) => there ? get("/cluster").catch(() => null) : null)]);
    const kept = cluster ? cluster.nodes.reduce((all, one) => all + one.kept, 0) : 0;
    shown.replaceChildren(
      sheet("This node", [], table("This node", [["Node", (n) => name(n.name)], ["State", (n) => badge(n.state, n.state === "running" ? "good" : "warn")],
        ["Version", (n) => n.version], ["Up", (n) => span(n.uptime), "num"], ["Connections", (n) => number(n.connections), "num"],
        ["Sessions", (n) => number(n.sessions), "num"]], found.nodes.filter((n) => n.here))),
      status.workers ? workers(status.workers) : "",
      cluster ? card("Cluster", facts([["Cluster", name(cluster.cluster)], ["State", badge(cluster.state, STATES[cluster.state])],
        ["etcd", etcd(cluster)], ["Proved", cluster.proved_ago === null ? "not yet" : `${number(cluster.proved_ago)} s ago`], ["Filters wanted here", number(cluster.filters)],
        ["Not known to all yet", number(cluster.unsettled)], ["Refused", number(cluster.refused)],
        ["Sessions that came, went, did not come in time", `${cluster.sessions_came}, ${cluster.sessions_went}, ${cluster.sessions_missed}`]])) :
        card("Cluster", make("p", null, "This broker is in no cluster.")),
      kept ? note(`${number(kept)} messages wait for other nodes.`, "warn") : "",
      cluster ? sheet("All nodes", [], table("All nodes", [["Node", (n) => name(n.node)], ["", (n) => n.here ? badge("this one") : ""],
        ["Lets clients in", (n) => badge(n.ready ? "ready" : "not yet", n.ready ? "good" : "warn")],
        ["Link", (n) => n.here ? "" : badge(n.linked ? "linked" : "no link", n.linked ? "good" : "bad")],
        ["Address", (n) => n.address], ["Version", (n) => n.version],
        ["Up", (n) => n.uptime === null ? "" : span(n.uptime), "num"], ["Connections", (n) => n.connections === null ? "" : number(n.connections), "num"],
        ["Sessions", (n) => n.sessions === null ? "" : number(n.sessions), "num"], ["Filters", (n) => number(n.filters), "num"],
        ["Messages that wait", (n) => number(n.kept), "num"]], cluster.nodes)) : "");
  };
  await show();
  const timer = setInterval(() => shown.contains(document.activeElement) || show().catch(() => {}), 5000);
  return () => clearInterval(timer);
}
