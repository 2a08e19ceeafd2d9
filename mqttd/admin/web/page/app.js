/* The dashboard: a page for each word behind `#`, over the HTTP interface and its events. */
import { enter, leave, who } from "./api.js";
import { form, make } from "./parts.js";
import * as pages from "./pages.js";

const main = document.getElementById("main");
const told = document.getElementById("told");
const PAGES = [["overview", "Overview"], ["clients", "Clients"], ["subscriptions", "Subscriptions"],
  ["retained", "Retained"], ["listeners", "Listeners"], ["alarms", "Alarms"], ["access", "Access"], ["api", "API"]];
let end = () => {};
let user = null;

export function say(text) { told.textContent = text; }

function failed(error) { say(error.message); }

async function show() {
  end();
  end = () => {};
  say("");
  const [name, ...rest] = (location.hash.slice(1) || "overview").split("/");
  document.getElementById("pages").replaceChildren(...PAGES.map(([key, label]) =>
    make("a", { href: `#${key}`, "aria-current": key === name ? "page" : null }, label)));
  const page = pages[name] || pages.overview;
  main.replaceChildren();
  try {
    end = (await page(main, { user, say, failed, again: show, rest: rest.map(decodeURIComponent) })) || end;
  } catch (error) { failed(error); }
  main.focus();
}

function login(text) {
  end();
  end = () => {};
  user = null;
  document.getElementById("pages").replaceChildren();
  document.getElementById("who").textContent = "";
  document.getElementById("leave").hidden = true;
  say(text || "");
  main.replaceChildren(make("h1", null, "Log in"), form("Log in",
    [["username", "User"], ["password", "Password", "password"]], "Log in",
    ({ username, password }) => enter(username, password).then(begin, failed)));
  main.querySelector("input").focus();
}

function begin(found) {
  user = found;
  document.getElementById("who").textContent = `${found.name} (${found.role})`;
  document.getElementById("leave").hidden = false;
  return show();
}

document.getElementById("leave").addEventListener("click", () => leave().then(() => login(), failed));
window.addEventListener("hashchange", () => user && show());
window.addEventListener("logged-out", () => login("You are logged out."));
who().then(begin, (error) => login(error.code === "no_users" ? error.message : ""));
