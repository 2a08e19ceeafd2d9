/* Roles with rules, groups of roles, and which users have them; a change holds for who is there at once. */
import { ask, get, id, post } from "../api.js";
import { on } from "../live.js";
import { asked, badge, button, calmly, card, form, head, make, name, note, pager, sheet, table, tabs, visible } from "../parts.js";
import { link, state } from "./clients.js";

const PARTS = [["users", "Users"], ["roles", "Roles"], ["groups", "Groups"]];
const SHOWN = 10;
const href = (part, one) => `#roles/${part}/${id(one)}`;
const links = (part, list) => list.length ? make("span", { class: "row" }, list.map((one) => name(one, href(part, one)))) : "";
const given = (one) => one.enabled ? badge("in force", "good") : badge("disabled", "warn");
const code = (text) => make("code", null, visible(text));
const lines = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);
const rules = (text) => make("div", null, lines(text).map((one) => make("div", null, code(one))));

/* What each part lists, by which path it is asked, and the fields of one; `all`: {cursor, prefix} -> {rows, cursor}. */
const KINDS = {
  users: { path: "/members", key: "username", one: "user", empty: { username: "", roles: [], groups: [], enabled: true, text: "" },
    all: (wish) => get("/members", { ...wish, limit: 50 }).then((page) => ({ rows: page.members, cursor: page.cursor })),
    columns: [["User", (m) => name(m.username, href("users", m.username))], ["Roles", (m) => links("roles", m.roles), "wrap"],
      ["Groups", (m) => links("groups", m.groups), "wrap"], ["State", (m) => m.enabled ? badge("may come", "good") : badge("kept out", "bad")],
      ["Note", (m) => m.text, "wrap"]],
    fields: (m) => [["roles", "Roles, one a line, in the order they are asked", "textarea", { value: m.roles.join("\n") }],
      ["groups", "Groups, one a line; asked behind these roles", "textarea", { value: m.groups.join("\n") }]],
    off: "Kept out, and disconnected", gone: "It loses its roles and groups, and may come in again if it was kept out.",
    made: ({ roles, groups }) => ({ roles: lines(roles), groups: lines(groups) }) },
  roles: { path: "/roles", key: "name", one: "role", empty: { name: "", rules: "", enabled: true, text: "" },
    all: () => get("/roles").then((found) => ({ rows: found.roles })),
    columns: [["Role", (r) => name(r.name, href("roles", r.name))], ["Rules", (r) => rules(r.rules), "wrap"], ["State", given],
      ["Note", (r) => r.text, "wrap"]],
    fields: (r) => [["rules", "Rules in the words of acl.conf, in the order they are asked", "textarea",
      { value: r.rules, hint: "{allow, all, publish, [\"plant/%u/#\"]}. – all: who has the role; %u: the user's own name" }]],
    off: "Disabled: gives nothing", gone: "Groups and users lose it; subscriptions that nothing else allows end.",
    made: ({ rules: text }) => ({ rules: text }) },
  groups: { path: "/groups", key: "name", one: "group", empty: { name: "", roles: [], enabled: true, text: "" },
    all: () => get("/groups").then((found) => ({ rows: found.groups })),
    columns: [["Group", (g) => name(g.name, href("groups", g.name))], ["Roles", (g) => links("roles", g.roles), "wrap"], ["State", given],
      ["Note", (g) => g.text, "wrap"]],
    fields: (g) => [["roles", "Roles, one a line, in the order they are asked", "textarea", { value: g.roles.join("\n") }]],
    off: "Disabled: gives nothing", gone: "Its users lose it; subscriptions that nothing else allows end.",
    made: ({ roles }) => ({ roles: lines(roles) }) },
};

export async function roles(main, about) {
  const part = Object.hasOwn(KINDS, about.rest[0] || "") ? about.rest[0] : "users";
  main.append(head("Roles", "What users may by their roles; a change holds at once, for who is connected too."), tabs("roles", PARTS, part));
  return about.rest[1] ? one(main, about, part, about.rest.slice(1).join("/")) : all(main, about, part);
}

/* One of them to be put: a form of what it is now; `called`: its name, if that is known. */
function put(about, kind, now, called, then) {
  return form(called ? `Change the ${kind.one}` : `Put a ${kind.one}`, [
    ...(called ? [] : [[kind.key, kind.one === "user" ? "User; $anonymous: clients without a user name" : "Name", "text", { required: true, maxlength: 1000 }]]),
    ...kind.fields(now), ["text", "Note", "text", { value: now.text }], ["disabled", kind.off, "checkbox", { value: !now.enabled }]],
  called ? "Save" : `Put the ${kind.one}`, (filled) => {
    const key = called || filled[kind.key];
    return post(kind.path, { [kind.key]: key, ...kind.made(filled), text: filled.text, enabled: !filled.disabled }).then(() => {
      about.say(`Saved ${visible(key)}; it is in force.`);
      return then(key);
    }, about.failed);
  }, "tall");
}

async function all(main, about, part) {
  const kind = KINDS[part];
  let wish = {};
  const list = pager((cursor) => kind.all({ ...wish, cursor }), (rows) => table(PARTS.find(([key]) => key === part)[1], kind.columns, rows), about.failed);
  main.append(sheet("", [], part === "users" ? form("Filter", [["prefix", "User begins with", "search"]], "Show",
    (filled) => { wish = filled; return list.first(); }) : null, ...list.element));
  if (about.may("administrator")) {
    main.append(card(`Put a ${kind.one}`, put(about, kind, kind.empty, "", (key) => { location.hash = href(part, key); })));
  }
  await list.first();
}

async function one(main, about, part, called) {
  const kind = KINDS[part];
  const found = part === "groups" ? (await get("/groups")).groups.find((group) => group.name === called)
    : await get(`${kind.path}/${id(called)}`).catch((error) => { if (error.status !== 404) throw error; });
  const drop = async () => {
    if (await asked(`Delete ${visible(called)}`, kind.gone, "Delete", { bad: true })) {
      await ask("DELETE", `${kind.path}/${id(called)}`).then(() => { location.hash = `#roles/${part}`; }, about.failed);
    }
  };
  const administrator = about.may("administrator");
  main.append(make("div", { class: "head" }, make("h2", null, `${kind.one[0].toUpperCase()}${kind.one.slice(1)} `, name(called)),
    found && administrator ? button("Delete", drop, "small bad", { "aria-label": `Delete ${visible(called)}` }) : null));
  if (!found && part !== "users") return void main.append(note(`There is no ${kind.one} of this name.`));
  const ends = part === "users" ? await clientsOf(main, about, called) : null;
  main.append(administrator ? card("", put(about, kind, found || { ...kind.empty, username: called }, called, about.again))
    : sheet("", [], table(kind.one, kind.columns, found ? [found] : [])));
  if (part === "roles") await havers(main, called);
  return ends;
}

/* Who is here under a user name, and what each has subscribed to: a change is seen on it. */
async function clientsOf(main, about, username) {
  if (username === "$anonymous") return null;
  const list = make("div", { "aria-live": "polite" });
  let drawn = "";
  const show = async () => {
    const { clients: rows, cursor } = await get("/clients", { username, limit: SHOWN });
    await Promise.all(rows.map(async (one) => {
      one.filters = (await get("/subscriptions", { client_id: one.client_id }).catch(() => ({ subscriptions: [] }))).subscriptions;
    }));
    const now = JSON.stringify(rows.map((c) => [c.client_id, c.connected, c.peerhost, c.last_reason, c.filters.map((s) => s.topic_filter)]));
    if (now === drawn) return;
    drawn = now;
    list.replaceChildren(table("Clients", [["Client", (c) => link(c.client_id)], ["State", state], ["Address", (c) => c.peerhost],
      ["Subscribed to", (c) => make("span", { class: "row" }, c.filters.map((s) => name(s.topic_filter))), "wrap"],
      ["Last reason", (c) => c.last_reason, "wrap"]], rows),
    cursor ? note(`The first ${SHOWN}; Clients has all of them.`) : "");
  };
  main.append(sheet("Its clients", [], list));
  await show();
  const again = calmly(() => show().catch(about.failed));
  const off = on("clients", again, again);
  const timer = setInterval(again, 1500);
  return () => { clearInterval(timer); again.end(); off(); };
}

/* Which groups have a role; users are asked for by their own names, there may be very many. */
async function havers(main, called) {
  const { groups } = await get("/groups");
  main.append(sheet("Groups that have it", [], table("Groups that have it", KINDS.groups.columns, groups.filter((group) => group.roles.includes(called)))));
}
