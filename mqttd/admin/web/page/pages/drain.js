/* Taking this node out of service: its clients go elsewhere at a rate; how far that is, and back. */
import { ask, get, post } from "../api.js";
import { asked, badge, button, card, facts, form, head, make, note, number, span, visible } from "../parts.js";

export async function drain(main, about) {
  const administrator = about.may("administrator");
  const shown = make("div");
  let last = null;
  const cancel = () => ask("DELETE", "/drain").then((told) => {
    about.say(`Clients are let in again; ${number(told.ended)} were sent away.`);
    return show();
  }, about.failed);
  const begin = async (given) => {
    const ends = given.exit ? " Then the broker ends: this page is gone until it is started again." : "";
    if (!await asked("Drain this node", `Nobody is let in, and all clients are disconnected.${ends}`, "Drain", { bad: true })) return;
    await post("/drain", { rate: given.rate, to: given.to.trim(), moved: given.moved, exit: given.exit }).then(show, about.failed);
  };
  const plan = () => card("Drain this node", make("p", { class: "soft" },
    "5.0 clients are told where to go, others are closed; sessions stay in this broker's store."),
  make("br"), form("Drain this node", [["rate", "Clients a second", "number", { value: 100, min: 0.1, max: 1000000, step: "any", required: true }],
    ["to", "Server Reference: host or host:port, may be left out", "text", { maxlength: 1000 }],
    ["moved", "for ever (0x9D, server moved)", "checkbox"], ["exit", "end the broker when nobody is left", "checkbox", { value: true }]],
  "Drain …", begin, "tall"));
  const running = (now) => {
    const all = now.ended + now.left;
    const rest = now.left ? span(Math.ceil(now.left / now.rate)) : "–";
    return card("", make("div", { class: "title" }, make("h2", null, now.left ? badge("draining", "warn") : badge("nobody is left", "good")),
      administrator ? button("Cancel", cancel, "main", { id: "cancel" }) : null),
    make("meter", { min: 0, max: all || 1, value: all ? now.ended : 1, "aria-label": "Share of clients that were sent away" }),
    facts([["Sent away", number(now.ended)], ["Left", number(now.left)], ["Rate", `${number(now.rate)} a second`], ["Time left", rest],
      ["To", now.to ? visible(now.to) : "nowhere"], ["Then", now.exit ? "the broker ends" : "nobody is let in until this is cancelled"]]));
  };
  const draw = (now) => {
    if (now.draining) shown.replaceChildren(running(now));
    else if (!last || last.draining) {
      shown.replaceChildren(note("This node serves clients.", "good"), administrator ? plan() : "");
    }
    last = now;
  };
  const show = async () => draw(await get("/drain"));
  main.append(head("Drain", "Take this node out of service: nobody is let in, clients go elsewhere at a rate."), shown);
  await show();
  let timer = 0;
  const look = async () => {
    await show().catch((error) => {
      if (error.status === 0 && last?.draining && last.exit) shown.replaceChildren(note("Nobody is left, and the broker has ended.", "good"));
    });
    if (timer !== -1) timer = setTimeout(look, 1000);
  };
  timer = setTimeout(look, 1000);
  return () => { clearTimeout(timer); timer = -1; };
}
