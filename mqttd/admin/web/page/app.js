/* The dashboard: a page for each word behind `#`, over the HTTP interface and its events. */
import { enter, first, get, leave, who } from "./api.js";
import * as live from "./live.js";
import { card, form, head, icon, make, note, visible } from "./parts.js";
import { GROUPS, pages } from "./pages.js";

const here = (id) => document.getElementById(id);
const main = here("main");
const ROLES = ["events", "viewer", "operator", "administrator"];
let end = () => {};
let user = null;
let shows = 0;

export function say(text, bad) {
  const told = here("told");
  told.textContent = text ? visible(text) : "";
  told.className = bad ? "bad" : "";
  clearTimeout(say.timer);
  if (text) say.timer = setTimeout(() => { told.textContent = ""; }, bad ? 12000 : 5000);
}

const failed = (error) => say(error.message, true);
const may = (role) => Boolean(user) && ROLES.indexOf(user.role) >= ROLES.indexOf(role);
const parts = () => (location.hash.slice(1) || "overview").split("/").map((one) => {
  try { return decodeURIComponent(one); } catch { return one; }
});

function stop() {
  const last = end;
  end = () => {};
  last();
}

async function show(stay) {
  stop();
  const [name, ...rest] = parts();
  const page = Object.hasOwn(pages, name) ? name : "overview";
  const mine = shows += 1;
  document.body.classList.remove("menu");
  here("menu").setAttribute("aria-expanded", "false");
  for (const link of here("pages").querySelectorAll("a")) {
    if (link.hash === `#${page}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${here("pages").querySelector("[aria-current] span")?.textContent || page} · mqttd`;
  const filled = make("div");
  main.replaceChildren(filled);
  // Before it is filled: who has begun to use it keeps the focus.
  if (stay !== true) main.focus({ preventScroll: true });
  try {
    const ends = await pages[page](filled, { user, may, say, failed, rest, again: () => show(true) });
    if (mine === shows) end = ends || end;
    else if (ends) ends();
  } catch (error) {
    if (error.status !== 401) filled.replaceChildren(head("Not shown"), note(visible(error.message), "bad"));
  }
}

function menu() {
  here("pages").replaceChildren(...GROUPS.flatMap(([title, list]) => [
    title ? make("h2", null, title) : "",
    ...list.filter(([, , role]) => !role || may(role)).map(([key, label]) =>
      make("a", { href: `#${key}` }, icon(key), make("span", null, label))),
  ]));
}

function door(title, text, fields, label, submit) {
  stop();
  live.end();
  user = null;
  shows += 1;
  document.body.className = "out";
  document.title = `${title} · mqttd`;
  here("node").textContent = "";
  main.replaceChildren(make("div", { class: "enter" },
    make("div", { class: "brand" }, make("img", { src: "/page/icon.svg", alt: "", width: 34, height: 34 }), "mqttd"),
    card("", make("h1", null, title), make("p", { class: "soft" }, text || ""),
      form(title, fields, label, (given) => submit(given).then(begin, failed), "tall"))));
  main.querySelector("input").focus();
}

function login(text) {
  door("Log in", text || "Enter your name and password.",
    [["username", "User", "text", { autocomplete: "username", required: true }],
      ["password", "Password", "password", { autocomplete: "current-password", required: true }]],
    "Log in", ({ username, password }) => enter(username, password));
}

/* The link that the broker has printed; its token stays out of the history. */
function firstUser(token) {
  history.replaceState(null, "", location.pathname);
  door("First administrator", "Nobody may log in yet. Choose a name and a password of at least 8 characters.",
    [["username", "User", "text", { autocomplete: "username", required: true, maxlength: 64 }],
      ["password", "Password", "password", { autocomplete: "new-password", required: true, minlength: 8 }],
      ["repeated", "Password again", "password", { autocomplete: "new-password", required: true }]],
    "Create and log in", async ({ username, password, repeated }) => {
      if (password !== repeated) throw new Error("These are two different passwords.");
      return first(token, username, password);
    });
}

function begin(found) {
  user = found;
  document.body.className = "";
  here("who").textContent = `${found.name} (${found.role})`;
  menu();
  live.begin();
  get("/status").then((told) => {
    here("node").textContent = visible(told.name);
    here("version").textContent = `mqttd ${told.version}`;
  }, failed);
  counted();
  say("");
  return show();
}

/* How many alarms there are, beside their page. */
function counted() {
  if (!may("viewer")) return;
  get("/alarms").then(({ alarms }) => {
    const link = here("pages").querySelector("a[href='#alarms']");
    link?.querySelector(".count")?.remove();
    if (alarms.length) link?.append(make("span", { class: "count" }, String(alarms.length)));
  }, () => {});
}

function dyed() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = dark ? "Light colours" : "Dark colours";
  here("theme").replaceChildren(icon(dark ? "sun" : "moon"));
  here("theme").setAttribute("aria-label", label);
  here("theme").setAttribute("title", label);
  window.dispatchEvent(new Event("theme"));
  return dark;
}

here("menu").append(icon("menu"));
here("leave").append(icon("leave"));
here("menu").addEventListener("click", () => {
  const open = document.body.classList.toggle("menu");
  here("menu").setAttribute("aria-expanded", String(open));
  if (open) here("pages").querySelector("a")?.focus();
});
main.addEventListener("click", () => document.body.classList.remove("menu"));
window.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && document.body.classList.contains("menu")) here("menu").click();
});
here("theme").addEventListener("click", () => {
  const wanted = dyed() ? "light" : "dark";
  document.documentElement.dataset.theme = wanted;
  try { localStorage.setItem("theme", wanted); } catch { /* kept for this page alone */ }
  dyed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dyed);
here("leave").addEventListener("click", () => leave().then(() => login("You are logged out."), failed));
window.addEventListener("hashchange", () => user && show());
window.addEventListener("logged-out", () =>
  user && login("The broker was away, or your log-in has ended. Log in again."));
/* Another tab of this page has logged in or out. */
window.addEventListener("session", ({ detail }) => {
  if (detail) who().then(begin, failed);
  else if (user) login("You are logged out.");
});
window.addEventListener("live-state", ({ detail: { state, before } }) => {
  here("state").className = state;
  here("state").textContent = state === "live" ? "Live" : "Connection lost, trying again …";
  if (state === "live" && before === "lost") { say("The broker answers again."); show(true); }
});
live.on("alarms", counted);
dyed();

const link = new URLSearchParams(location.hash.slice(1));
const token = link.get("first");
who().then(begin, (error) => {
  if (token && error.code === "no_users") firstUser(token);
  else login(error.code === "no_users" || error.status === 0 ? error.message : "");
});
