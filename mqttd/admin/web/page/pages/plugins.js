/* Plugins: what there is, what each costs, load and unload. */
import { get, id, post } from "../api.js";
import { asked, badge, button, card, facts, form, head, make, name, note, number, sheet, span, table, time, visible } from "../parts.js";
import { settings } from "./settings.js";

const KINDS = { loaded: "good", active: "good", quarantined: "bad", failed: "bad" };
const state = (word) => badge(word, KINDS[word]);

export async function plugins(main, about) {
  if (about.rest[0]) return one(main, about, about.rest[0]);
  const list = make("div");
  const show = async () => {
    const [{ plugins: found }, { budgets }] = await Promise.all([get("/plugins"), get("/hooks")]);
    const of = new Map(budgets.map((budget) => [budget.name, budget]));
    found.sort((one, other) => (other.state === "loaded") - (one.state === "loaded") || one.name.localeCompare(other.name));
    list.replaceChildren(sheet("", [], table("Plugins", [["Plugin", (p) => name(p.name, `#plugins/${id(p.name)}`)],
      ["State", (p) => state(of.get(p.name)?.state === "quarantined" ? "quarantined" : p.state)], ["What it does", (p) => p.error || p.description],
      ["Version", (p) => p.version], ["Calls", (p) => of.has(p.name) ? of.get(p.name).calls : "", "num"],
      ["Time", (p) => of.has(p.name) ? span(of.get(p.name).time) : "", "num"],
      ["Errors", (p) => of.has(p.name) ? of.get(p.name).errors : "", "num"],
      ["", (p) => actions(p, about, show, "small"), "acts"]], found)));
  };
  main.append(head("Plugins", "What was found, loaded or not; what each has cost since it was loaded."), list);
  await show();
}

function actions(p, about, then, size) {
  if (!about.may("administrator")) return "";
  const act = (what, done) => () => post(`/plugins/${id(p.name)}/${what}`).then(() => { about.say(done); return then(); }, about.failed);
  const unload = async () => {
    if (await asked(`Unload ${p.name}`, "Everything that it has registered is taken back.", "Unload", { bad: true })) await act("unload", `${p.name} was unloaded.`)();
  };
  return make("span", { class: "row" }, ...(p.state === "loaded"
    ? [button("Reload", act("reload", `${p.name} was loaded anew.`), size, { "aria-label": `Reload ${p.name}` }),
      button("Unload", unload, `${size} bad`, { "aria-label": `Unload ${p.name}` })]
    : [button("Load", act("load", `${p.name} was loaded.`), size, { "aria-label": `Load ${p.name}` })]));
}

async function one(main, about, called) {
  const path = `/plugins/${id(called)}`;
  let found = await get(path);
  main.append(head(visible(found.name), found.description, make("a", { href: "#plugins" }, "All plugins"), actions(found, about, about.again, "")));
  if (found.error) main.append(note(visible(found.error), "bad"));
  const shown = make("div");
  main.append(shown);
  const draw = () => {
    const { budget, registered: mine } = found;
    shown.replaceChildren(make("div", { class: "cards" },
      card("Plugin", facts([["State", state(found.state)], ["Version", found.version], ["Interface", found.api_version],
        ["Isolation", found.isolation], ["In quarantine it", found.policy === "deny" ? "refuses" : "is passed over"],
        ["Loaded", time(found.loaded_at)], ["At start", found.configured ? "named by the configuration" : "as it was left"],
        ["Code", found.file], ["Settings", found.config_file]])),
      budget ? card("Budget", facts([["State", state(budget.state)], ["Calls", budget.calls],
        ["Time in all", span(budget.time)], ["Longest call", `${number(budget.longest * 1000)} ms of ${number(budget.limits.per_call * 1000)} ms`],
        ["Share of a second", `at most ${number(100 * budget.limits.per_second)} %`],
        ["Errors", `${number(budget.errors_counted)} of ${budget.limits.error_limit} in ${span(budget.limits.error_window)}; ${number(budget.errors)} in all`],
        ["Last error", budget.last_error], ["Skipped calls", budget.skipped], ["Refused meanwhile", budget.denied], ["Waiting", budget.waiting],
        ["Quarantines", budget.quarantines]])) : ""),
    mine ? make("div", { class: "cards" },
      sheet("Hooks", [], table("Hooks", [["Hook point", (h) => make("code", null, h.point)], ["Priority", (h) => h.priority, "num"],
        ["Topics", (h) => h.topic_filter.map(visible).join(", ") || "all"], ["Errors", (h) => h.errors, "num"]], mine.hooks)),
      card("Figures and the like", facts([...Object.entries(mine.metrics).map(([key, value]) => [key.replaceAll("_", " "), value]),
        ["Timers", mine.timers], ["Threads", mine.threads], ["Subscriptions", mine.subscriptions.map(visible).join(", ")],
        ["Kept under keys", `${number(mine.store.keys)}, ${number(mine.store.bytes)} bytes`]]))) : "");
  };
  draw();
  if (found.state === "loaded" && Object.keys(found.commands || {}).length && about.may("administrator")) main.append(commands(found, about));
  if (about.may("administrator")) main.append(await settings(called, about));
  let timer = setInterval(async () => {
    const next = await get(path).catch(() => null);
    if (!next || timer < 0) return;
    if (next.state !== found.state) return about.again();
    found = next;
    draw();
  }, 2000);
  return () => { clearInterval(timer); timer = -1; };
}

function commands(found, about) {
  const told = make("pre", { class: "box", tabindex: 0, role: "region", "aria-label": "What the command has said", hidden: true });
  return card("Commands", make("p", { class: "soft" }, "As `mqttd-ctl` has them."),
    facts(Object.entries(found.commands).map(([key, text]) => [make("code", null, key), text])), make("br"),
    form("Command", [["command", "Command", Object.keys(found.commands)], ["argv", "Words behind it"]], "Run", ({ command, argv }) =>
      post(`/plugins/${id(found.name)}/commands/${id(command)}`, { argv: argv.split(/\s+/).filter(Boolean) }).then((answer) => {
        told.hidden = false;
        told.textContent = answer.output;
      }, about.failed)), told);
}
