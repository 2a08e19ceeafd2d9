/* Clients: all that fit a filter, page by page; and one of them. */
import { get } from "../api.js";
import { on } from "../live.js";
import { badge, bytes, calmly, form, head, name, number, pager, sheet, span, table } from "../parts.js";
import { client } from "./client.js";

export const link = (one) => name(one, `#clients/${encodeURIComponent(one)}`);
export const state = (one) => one.connected ? badge("connected", "good") : badge("away");

export async function clients(main, about) {
  if (about.rest.length && about.rest[0] !== "") return client(main, about, about.rest.join("/"));
  let wish = { sort: "client_id" };
  const order = { get by() { return wish.sort; }, set: (sort) => { wish = { ...wish, sort }; list.first(); } };
  const list = pager(
    (cursor) => get("/clients", { ...wish, limit: 50, cursor }).then((page) => ({ rows: page.clients, ...page })),
    (rows) => table("Clients", [["Client", (c) => link(c.client_id), "", "client_id"],
      ["State", state], ["User", (c) => c.username === null ? "–" : name(c.username), "", "username"],
      ["Address", (c) => c.peerhost], ["Listener", (c) => c.listener],
      ["Age", (c) => span(c.session_age), "num", "session_age"],
      ["Subscriptions", (c) => c.subscriptions, "num", "subscriptions"], ["In flight", (c) => c.inflight, "num", "inflight"],
      ["Queued", (c) => c.mqueue ? `${number(c.mqueue)}, ${bytes(c.mqueue_bytes)}` : "0", "num", "mqueue_bytes"]], rows, order),
    about.failed);
  main.append(head("Clients", "Everybody who is connected, and sessions that wait for their client."), sheet("", [],
    form("Filter", [["prefix", "Client id begins with", "search"], ["username", "User", "search"],
      ["address", "Address or network", "search"], ["subscription", "Subscribed to", "search"],
      ["state", "State", ["", "connected", "away"]]],
    "Show", (given) => { wish = { ...given, sort: wish.sort }; return list.first(); }), ...list.element));
  await list.first();
  const again = calmly(list.again);
  const off = on("clients", again, again);
  return () => { again.end(); off(); };
}
