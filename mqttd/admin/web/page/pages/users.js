/* Who may connect with a password, and who may use this page or a token. */
import { ask, get, has, id, post } from "../api.js";
import { asked, badge, button, form, head, make, name, note, sheet, table, time, visible } from "../parts.js";

const ROLES = ["viewer", "operator", "administrator", "events"];

export async function users(main, about) {
  main.append(head("Users", "MQTT clients with a user name, and who may use this page or a token."));
  main.append(await clients(about));
  if (about.may("administrator") && await has("/api-users")) main.append(await operators(about));
}

async function clients(about) {
  const list = make("div");
  const administrator = about.may("administrator");
  const drop = async (user) => {
    if (await asked(`Delete ${visible(user)}`, "Its connections end.", "Delete", { bad: true })) {
      await ask("DELETE", `/users/${id(user)}`).then(show, about.failed);
    }
  };
  const show = async () => {
    try {
      const { users: found } = await get("/users");
      list.replaceChildren(table("Users", [["User", (u) => name(u, `#roles/users/${id(u)}`)], ["", (u) => administrator ? button("Delete", () => drop(u), "small bad",
        { "aria-label": `Delete ${visible(u)}` }) : "", "acts"]], found));
    } catch (error) {
      if (error.status === 401) throw error;
      list.replaceChildren(note(visible(error.message)));
    }
  };
  const add = ({ username, password }, made) => post("/users", { username, password }).then((told) => {
    about.say(told.new ? `Added ${told.username}.` : `${told.username} has a new password.`);
    made.reset();
    return show();
  }, about.failed);
  await show();
  return sheet("MQTT clients, in the password file", [], administrator ? form("Add a user", [["username", "User", "text", { required: true }],
    ["password", "Password", "password", { required: true }]], "Add, or set the password", add) : null, list);
}

async function operators(about) {
  const list = make("div");
  const once = make("div", { "aria-live": "polite" });
  const drop = async (user) => {
    if (await asked(`Delete ${user}`, "Its log-ins and its token end.", "Delete", { bad: true })) {
      await ask("DELETE", `/api-users/${id(user)}`).then(show, about.failed);
    }
  };
  const show = async () => {
    const { users: found } = await get("/api-users");
    list.replaceChildren(table("Users of this page", [["Name", (u) => name(u.name)], ["Role", (u) => badge(u.role)],
      ["Shows", (u) => u.shows], ["Expires", (u) => u.expires === null ? "never" : time(u.expires)],
      ["", (u) => button("Delete", () => drop(u.name), "small bad", { "aria-label": `Delete ${u.name}` }), "acts"]], found));
  };
  const add = ({ name: called, role, password, days }, made) => post("/api-users", { name: called, role,
    ...(password ? { password } : {}), ...(days ? { seconds: days * 86400 } : {}) }).then((told) => {
    made.reset();
    once.replaceChildren(told.token ? note(make("span", null, `The token of ${told.name}, shown this once: `, make("code", null, told.token)), "good") : "");
    about.say(told.new ? `Added ${told.name}.` : `Changed ${told.name}.`);
    return show();
  }, about.failed);
  await show();
  return sheet("This page and programs", [], form("Add who may use the page", [["name", "Name", "text", { required: true, maxlength: 64 }],
    ["role", "Role", ROLES], ["password", "Password; without one, a token", "password", { minlength: 8 }],
    ["days", "Days, for ever if left out", "number", { min: 1 }]], "Add", add), once, list);
}
