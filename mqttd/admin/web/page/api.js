/* The HTTP interface. A log-in has two secrets: a cookie that no script can read, which browsers send to
 * every port of a host, and `csrf`, which every request shows. It is told once, with the log-in, and kept
 * where this origin alone reads it, for this tab; tabs of the same page tell each other. */
const KEY = "csrf";
const ASKED = "?";
const WAITED = 250;
const tabs = new BroadcastChannel("mqttd");
let csrf = sessionStorage.getItem(KEY);
let paths = null;
let asking = false;

function keep(told) {
  csrf = told;
  if (told) sessionStorage.setItem(KEY, told);
  else sessionStorage.removeItem(KEY);
}

tabs.addEventListener("message", ({ data }) => {
  if (data === ASKED) return void (csrf && tabs.postMessage(csrf));
  const other = data !== csrf;
  keep(data);
  if (other && !asking) window.dispatchEvent(new CustomEvent("session", { detail: Boolean(data) }));
});

/* A new tab asks the others; where there are none, or nobody has logged in, that takes WAITED ms. */
const others = () => new Promise((done) => {
  const over = ({ data }) => {
    if (data === ASKED) return;
    asking = false;
    tabs.removeEventListener("message", over);
    done();
  };
  asking = true;
  tabs.addEventListener("message", over);
  tabs.postMessage(ASKED);
  setTimeout(over, WAITED, {});
});

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || `HTTP status ${status}`);
    this.status = status;
    this.code = problem.code;
  }
}

async function fetched(method, path, query, body, more, signal) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== "" && value != null);
  const search = given.length ? "?" + new URLSearchParams(given) : "";
  const headers = { ...more };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const shown = csrf;
  if (shown) headers["X-CSRF-Token"] = shown;
  let answer;
  try {
    answer = await fetch("/api/v1" + path + search, {
      method, headers, signal, credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, { detail: "The broker does not answer.", code: "unreachable" });
  }
  if (signal && answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    if (answer.status === 401 && shown === csrf) keep(null);
    if (answer.status === 401 && !path.startsWith("/session")) window.dispatchEvent(new Event("logged-out"));
    throw new Refused(answer.status, told);
  }
  return { told, headers: answer.headers };
}

export const ask = (method, path, query, body, more) =>
  fetched(method, path, query, body, more).then((answer) => answer.told);
export const get = (path, query) => ask("GET", path, query);
export const post = (path, body, query) => ask("POST", path, query, body === undefined ? {} : body);

/* What was told, with the ETag by which a change says what it has seen. */
export async function tagged(path) {
  const { told, headers } = await fetched("GET", path);
  return { told, tag: headers.get("etag") };
}

/* Server-sent events: each as {event, data}, to `heard`, until the stream or `signal` ends it. */
export async function events(query, signal, opened, heard) {
  const answer = await fetched("GET", "/events", query, undefined, {}, signal);
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const one of whole) {
      const found = Object.fromEntries(one.split("\n").map((line) => line.split(/: ?(.*)/s, 2)));
      if (found.event) heard(found);
    }
  }
}

async function known(work) {
  const told = await work;
  keep(told.csrf);
  tabs.postMessage(csrf);
  return told;
}

export async function who() {
  if (!csrf) await others();
  return get("/session");
}
export const enter = (username, password) => known(ask("POST", "/session", null, { username, password }));
export const first = (token, username, password) =>
  known(ask("POST", "/session/first", null, { token, username, password }));

export async function leave() {
  await ask("DELETE", "/session");
  keep(null);
  tabs.postMessage(null);
}

/* The paths of this broker's interface: a page offers what there is. */
export async function has(path) {
  paths = paths || (await get("/openapi.json")).paths;
  return "/api/v1" + path in paths;
}

export const id = (text) => encodeURIComponent(text);
