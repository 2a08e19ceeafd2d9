/* The HTTP interface: who asks is known by a cookie that no script can read; changes show `csrf`. */
let csrf = null;

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || `HTTP status ${status}`);
    this.status = status;
    this.code = problem.code;
  }
}

export async function ask(method, path, query, body) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== "" && value != null);
  const search = given.length ? "?" + new URLSearchParams(given) : "";
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (csrf && method !== "GET") headers["X-CSRF-Token"] = csrf;
  const answer = await fetch("/api/v1" + path + search, {
    method, headers, credentials: "same-origin",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const told = await answer.json();
  if (!answer.ok) {
    if (answer.status === 401 && path !== "/session") window.dispatchEvent(new Event("logged-out"));
    throw new Refused(answer.status, told);
  }
  return told;
}

export const get = (path, query) => ask("GET", path, query);

export async function who() {
  const told = await get("/session");
  csrf = told.csrf;
  return told;
}

export async function enter(username, password) {
  const told = await ask("POST", "/session", null, { username, password });
  csrf = told.csrf;
  return told;
}

export async function leave() {
  await ask("DELETE", "/session");
  csrf = null;
}

export const id = (text) => encodeURIComponent(text);
