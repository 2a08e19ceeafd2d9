/* Who has subscribed to what, and where a message to a topic goes. */
import { get } from "../api.js";
import { badge, card, form, head, make, name, pager, sheet, table, visible, without } from "../parts.js";
import { link } from "./clients.js";

export async function subscriptions(main, about) {
  const routes = make("div", { "aria-live": "polite" });
  let wish = {};
  const list = pager(
    (cursor) => get(wish.client_id || wish.topic_filter ? "/subscriptions" : "/subscriptions", { ...wish, limit: 100, cursor })
      .then((page) => ({ rows: page.subscriptions, ...page })),
    (rows) => table("Subscriptions", [["Client", (s) => link(s.client_id)], ["Filter", (s) => name(s.topic_filter)],
      ["QoS", (s) => s.qos, "num"],
      ["Options", (s) => [s.no_local && "no local", s.retain_as_published && "retain as published",
        s.subscription_identifier && `identifier ${s.subscription_identifier}`].filter(Boolean).join(", ")]], rows),
    about.failed);
  const ask = ({ topic }) => get("/routes", { topic }).then((found) => routes.replaceChildren(
    make("p", null, found.routes.length ? badge(`${found.routes.reduce((all, one) => all + (one.group ? 1 : one.receivers), 0)} would get it`, "good")
      : badge("nobody would get it", "warn"), " ", name(found.topic)),
    without(found), found.routes.length ? table("Routes", [["Filter that matches", (r) => name(r.topic_filter)],
      ["Shared group", (r) => r.group], ["Receivers", (r) => r.receivers, "num"],
      ["Clients", (r) => make("span", null, r.clients.slice(0, 10).flatMap((one) => [link(one), " "]),
        r.clients.length < r.receivers || r.clients.length > 10 ? "…" : "")]], found.routes) : ""), about.failed);
  main.append(head("Subscriptions", "By client. A topic's routes say who gets a message to it."),
    card("Who gets a topic", form("Who gets a topic", [["topic", "Topic", "text", { required: true }]], "Who gets it?", ask), routes),
    sheet("", [], form("Filter", [["topic_filter", "Topic filter, in these words", "search"], ["client_id", "Client", "search"]],
      "Show", (given) => { wish = given; return list.first(); }), ...list.element));
  await list.first();
}
