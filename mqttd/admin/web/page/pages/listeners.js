/* Where clients connect: state, room, certificates. */
import { get, id, post } from "../api.js";
import { asked, badge, button, head, make, number, sheet, span, table, visible } from "../parts.js";

const until = (text) => {
  if (!text) return "–";
  const left = (new Date(text) - Date.now()) / 1000;
  const day = new Date(text).toISOString().slice(0, 10);
  return badge(left < 0 ? `expired ${day}` : `${day}, ${span(left)} left`, left < 0 ? "bad" : left < 30 * 86400 ? "warn" : "good");
};

export async function listeners(main, about) {
  const list = make("div");
  const administrator = about.may("administrator");
  const act = (l, what) => async () => {
    if (what !== "start" && !await asked(`${what === "stop" ? "Stop" : "Restart"} ${l.id}`, "Its connections end.", what === "stop" ? "Stop" : "Restart", { bad: true })) return;
    await post(`/listeners/${id(l.id)}/${what}`).then(show, about.failed);
  };
  const certificates = () => post("/listeners/certificates/reload").then((told) => {
    about.say(told.reloaded.length ? `Read again: ${told.reloaded.join(", ")}` : "No listener has a certificate.");
    return show();
  }, about.failed);
  const show = async () => {
    const { listeners: found } = await get("/listeners");
    list.replaceChildren(sheet("", [], table("Listeners", [["Listener", (l) => make("b", null, visible(l.id))],
      ["State", (l) => badge(l.state, l.state === "running" ? "good" : "bad")],
      ["Address", (l) => make("span", { class: "mono" }, l.port ? `${l.host.includes(":") ? `[${l.host}]` : l.host}:${l.port}` : l.host)],
      ["Transport", (l) => l.transport],
      ["Connections", (l) => l.max_connections ? `${number(l.connections)} of ${number(l.max_connections)}` : l.connections, "num"],
      ["Certificate until", (l) => until(l.certificate_until)],
      ["", (l) => administrator ? make("span", { class: "row" }, ...(l.state === "running" ? ["restart", "stop"] : ["start"]).map((what) =>
        button(what[0].toUpperCase() + what.slice(1), act(l, what), what === "start" ? "small" : "small bad", { "aria-label": `${what} ${l.id}` }))) : "", "acts"]],
    found)));
  };
  main.append(head("Listeners", "Where clients connect.", administrator ? button("Read certificates again", certificates) : null), list);
  await show();
  const timer = setInterval(() => document.activeElement?.closest("td") || show().catch(() => {}), 3000);
  return () => clearInterval(timer);
}
