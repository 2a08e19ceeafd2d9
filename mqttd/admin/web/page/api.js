/* The HTTP interface: who asks is known by a cookie that no script can read; changes show `csrf`. */
let csrf = null;
let paths = null;

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || `HTTP status ${status}`);
    this.status = status;
    this.code = problem.code;
  }
}

async function fetched(method, path, query, body, more) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== "" && value != null);
  const search = given.length ? "?" + new URLSearchParams(given) : "";
  const headers = { ...more };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (csrf && method !== "GET") headers["X-CSRF-Token"] = csrf;
  let answer;
  try {
    answer = await fetch("/api/v1" + path + search, {
      method, headers, credentials: "same-origin",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused(0, { detail: "The broker does not answer.", code: "unreachable" });
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) {
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

async function known(work) {
  const told = await work;
  csrf = told.csrf;
  return told;
}

export const who = () => known(get("/session"));
export const enter = (username, password) => known(ask("POST", "/session", null, { username, password }));
export const first = (token, username, password) =>
  known(ask("POST", "/session/first", null, { token, username, password }));

export async function leave() {
  await ask("DELETE", "/session");
  csrf = null;
}

/* The paths of this broker's interface: a page offers what there is. */
export async function has(path) {
  paths = paths || (await get("/openapi.json")).paths;
  return "/api/v1" + path in paths;
}

export const id = (text) => encodeURIComponent(text);
