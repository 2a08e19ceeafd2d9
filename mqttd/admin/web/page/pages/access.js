/* Access: why somebody may or may not, who may, the rules, and what a candidate would change. */
import { get, post } from "../api.js";
import { asked, badge, button, card, facts, form, head, make, name, note, number, sheet, table, tabs, visible } from "../parts.js";
import { link } from "./clients.js";

const PARTS = [["explain", "Explain"], ["who", "Who may"], ["rules", "Rules"], ["lint", "Findings"], ["shadow", "Candidate"],
  ["chain", "Chain"]];

export async function access(main, about) {
  const part = PARTS.some(([key]) => key === about.rest[0]) ? about.rest[0] : "explain";
  const reload = () => post("/acl/reload").then(() => { about.say("The rules were read again."); return about.again(); }, about.failed);
  main.append(head("Access", "Who may connect, publish and subscribe, by which rule.",
    about.may("operator") ? button("Read rules again", reload) : null), tabs("access", PARTS, part));
  return parts[part](main, about);
}

const verdict = (allowed) => badge(allowed ? "Allowed" : "Denied", allowed ? "good" : "bad");
const KINDS = ["publish", "subscribe"];

const parts = {
  explain(main, about) {
    const told = make("div", { "aria-live": "polite" });
    const [, , client_id, topic, action] = about.rest;
    main.append(card("May it?", form("Explain", [["client_id", "Client", "text", { value: client_id }], ["username", "User"],
      ["peerhost", "Address"], ["action", "Wants to", KINDS, { value: action }],
      ["topic", "Topic or filter", "text", { required: true, value: topic }],
      ["qos", "QoS", ["0", "1", "2"]], ["retain", "retain", "checkbox"]], "Explain",
    (question) => get("/acl/explain", given(question)).then((found) => told.replaceChildren(
      card("", make("div", { class: "title" }, make("h2", null, verdict(found.allowed), " ", visible(found.rule))),
        facts([["Client", found.client_id], ["User", found.username], ["Address", found.peerhost],
          ["Superuser", found.superuser], found.role && ["Role", found.role],
          found.hooks ? ["Plugins", `${found.hooks} are asked before the rules; their answer is not part of this`] : null])),
      sheet("Step by step", [], table("Rules", [["Module", (s) => s.module], ["Rule", (s) => make("code", null, visible(s.rule)), "wrap"],
        ["", (s) => s.matched ? badge("decides", found.allowed ? "good" : "bad") : visible(s.reason)]], found.steps))), about.failed))), told);
  },

  who(main, about) {
    const told = make("div", { "aria-live": "polite" });
    main.append(card("Who may?", form("Who may", [["topic", "Topic filter", "text", { required: true }],
      ["access", "Wants to", KINDS]], "Who may?",
    (question) => get("/acl/who", question).then((found) => told.replaceChildren(
      sheet(`${number(found.count)} clients that are here`, [], table("Clients", [["Client", (c) => link(c.client_id)],
        ["User", (c) => c.username], ["Address", (c) => c.peerhost], ["Topics", (c) => c.parts.map(visible).join(", ")],
        ["But not", (c) => c.but.map(visible).join(", ")], ["Rule", (c) => make("code", null, visible(c.rule)), "wrap"]], found.clients)),
      sheet("Rules that reach it", [], table("Rules", [["Rule", (r) => make("code", null, visible(r.rule)), "wrap"],
        ["Topics", (r) => r.parts.map(visible).join(", ")], ["But not", (r) => r.but.map(visible).join(", ")]], found.rules))),
    about.failed))), told);
  },

  async rules(main) {
    const { rules } = await get("/acl/rules");
    main.append(sheet("", [], table("Rules", [["#", (r) => r.line, "num"], ["Rule", (r) => make("code", null, visible(r.rule)), "wrap"],
      ["Has decided", (r) => r.hits, "num"], ["File", (r) => r.file]], rules)));
  },

  async lint(main) {
    const { findings } = await get("/acl/lint");
    main.append(findings.length ? sheet("", [], table("Findings", [["Kind", (f) => badge(f.kind, "warn")], ["What", (f) => f.text],
      ["Rule", (f) => make("code", null, visible(f.rule)), "wrap"], ["Line", (f) => f.line, "num"]], findings))
      : note("Nothing in the rules looks suspicious.", "good"));
  },

  async shadow(main, about) {
    let found;
    try { found = await get("/acl/shadow"); } catch (error) {
      if (error.code !== "no_shadow") throw error;
      return void main.append(note("There is no candidate: set acl.shadow.file to rules that run beside those in force, and see here what they would change."));
    }
    const promote = async () => {
      const sure = await asked("Make the candidate the rules", "The rules in force are kept beside as a backup; clients that are here are asked anew.",
        "Promote", { bad: true });
      if (sure) await post("/acl/promote").then((told) => { about.say(`In force; the old rules are in ${told.backup}`); return about.again(); }, about.failed);
    };
    main.append(card("Candidate", facts([["File", found.file], ["Rules", found.rules], ["Decisions compared", found.compared],
      ["Would allow more", found.would_allow], ["Would deny more", found.would_deny]]),
    about.may("administrator") ? make("p", null, make("br"), button("Promote …", promote)) : ""),
    sheet("Differences", [], table("Differences", [["Times", (d) => d.count, "num"],
      ["Would", (d) => badge(d.would, d.would === "deny" ? "bad" : "warn")], ["Client", (d) => link(d.client_id)],
      ["User", (d) => d.username], ["Does", (d) => `${d.action}, QoS ${d.qos}${d.retain ? ", retained" : ""}`], ["Topic", (d) => name(d.topic)],
      ["By the rules", (d) => make("code", null, visible(d.rule)), "wrap"], ["By the candidate", (d) => make("code", null, visible(d.shadow_rule)), "wrap"]],
    found.differences)));
  },

  async chain(main, about) {
    const { modules } = await get("/auth");
    const reload = () => post("/auth/reload").then(() => about.say("Users and keys were read again."), about.failed);
    main.append(sheet("Modules, in the order they are asked", about.may("operator") ? [button("Read users again", reload, "small")] : [],
      table("Modules", [["#", (m) => m.seq, "num"], ["Kind", (m) => badge(m.kind)], ["Module", (m) => m.description],
        ["Listener", (m) => m.listener || "all"], ["Asked", (m) => m.hit, "num"], ["Yes", (m) => m.ok, "num"], ["No", (m) => m.deny, "num"],
        ["Passed on", (m) => m.ignore, "num"], ["Errors", (m) => m.error, "num"],
        ["Breaker", (m) => m.breaker === "open" ? badge("open", "bad") : m.breaker]], modules)));
  },
};

function given(question) {
  const found = { ...question };
  for (const [key, value] of Object.entries(found)) if (value === "") delete found[key];
  return found;
}
