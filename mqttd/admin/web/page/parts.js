/* What pages are made of. Text is always text: nothing that comes from a client becomes markup. */
import { icon } from "./icons.js";

export { icon };

export function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child != null && child !== false) made.append(child);
  return made;
}

/* Characters that are not seen, or turn the writing round, are shown by their number. */
export const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Co}]/gu,
  (one) => `\\u{${one.codePointAt(0).toString(16)}}`);

/* A word that somebody else has chosen: cut to the room there is, whole when pointed at. */
export function name(text, href) {
  const shown = visible(text);
  return make(href ? "a" : "bdi", { class: "name", title: shown.length > 40 ? shown.slice(0, 2000) : null, href },
    shown.length > 300 ? shown.slice(0, 300) + "…" : shown);
}

export const head = (title, about, ...actions) => make("div", { class: "head" },
  make("div", null, make("h1", null, title), about ? make("p", { class: "soft" }, about) : null),
  make("div", { class: "row" }, ...actions));

export const card = (title, ...children) => make("section", { class: "card" },
  title ? make("div", { class: "title" }, make("h2", null, title)) : null, ...children);

/* A card whose table reaches its edges; `actions` stand beside its title. */
export const sheet = (title, actions, ...children) => make("section", { class: "card flush" },
  title ? make("div", { class: "title" }, make("h2", null, title), ...actions) : null, ...children);

export const badge = (text, kind) => make("span", { class: `badge ${kind || ""}` }, text);
export const note = (text, kind) => make("p", { class: `note ${kind || ""}` }, text);
export const button = (text, onclick, kind, more) =>
  make("button", { type: "button", class: kind || "", onclick, ...more }, text);

export function shown(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value === "number") return number(value);
  return visible(typeof value === "object" ? JSON.stringify(value) : value);
}

const cellOf = (found) => (found instanceof Node ? found : shown(found));

/* columns: [heading, function of a row that gives text or an element, kind: "num" or "acts", sort].
 * `order`, if given, is {by, set}: a column with a `sort` is a button that sets it. Rows that say which
 * worker or node they are of, where there are several, have a column for it. */
export function table(caption, columns, rows, order) {
  for (const [label, key, type] of [["Worker", "worker", "number"], ["Node", "node", "string"]]) {
    if (!rows.some((row) => typeof row[key] === type) || columns.some(([known]) => known === label)) continue;
    const acts = columns.at(-1)[2] === "acts";
    columns = columns.toSpliced(acts ? -1 : columns.length, 0,
      [label, (row) => type === "string" ? name(row[key]) : row[key], type === "string" ? "" : "num"]);
  }
  const head = columns.map(([label, , kind, sort]) => {
    if (!label) return make("td", null);
    if (!sort || !order) return make("th", { scope: "col", class: kind === "num" ? "num" : null }, label);
    const up = order.by === sort, down = order.by === `-${sort}`;
    return make("th", { scope: "col", class: kind === "num" ? "num" : null,
      "aria-sort": up ? "ascending" : down ? "descending" : null },
    make("button", { type: "button", onclick: () => order.set(up || (!down && kind === "num") ? `-${sort}` : sort) },
      label, up ? " ↑" : down ? " ↓" : ""));
  });
  const body = rows.map((row) => make("tr", null, columns.map(([label, cell, kind]) =>
    make("td", { "data-label": label, class: kind }, cellOf(cell(row))))));
  if (!rows.length) body.push(make("tr", null, make("td", { colspan: columns.length, class: "empty" }, "There are none.")));
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make("table", { "aria-label": caption, class: "list" }, make("thead", null, make("tr", null, head)), make("tbody", null, body)));
}

/* [what, value] of one thing. */
export const facts = (pairs) => make("dl", { class: "facts" },
  pairs.filter(Boolean).flatMap(([what, value]) => [make("dt", null, what), make("dd", null, cellOf(value))]));

/* One field: [name, label, kind, more]. kind: text, password, number, checkbox, textarea, or a list of
 * options; more: value, hint, and attributes of the control. */
function field([key, label, kind, more]) {
  const { value, hint, ...others } = more || {};
  let control;
  if (Array.isArray(kind)) {
    control = make("select", { name: key, ...others }, kind.map((one) => {
      const [given, text] = Array.isArray(one) ? one : [one, one || "any"];
      return make("option", { value: given, selected: String(given) === String(value ?? kind[0]) }, text);
    }));
  } else if (kind === "textarea") {
    control = make("textarea", { name: key, spellcheck: "false", ...others });
    control.value = value ?? "";
  } else {
    control = make("input", { name: key, type: kind || "text", value: kind === "checkbox" ? null : value,
      checked: kind === "checkbox" && Boolean(value), spellcheck: "false",
      autocomplete: kind === "password" ? "new-password" : "off", ...others });
  }
  if (kind === "checkbox") return make("label", { class: "check" }, control, label, hint ? make("small", null, hint) : null);
  return make("label", null, label, control, hint ? make("small", null, hint) : null);
}

function filled(form) {
  const found = Object.fromEntries(new FormData(form));
  for (const one of form.querySelectorAll("input[type=checkbox]")) found[one.name] = one.checked;
  for (const one of form.querySelectorAll("input[type=number]")) {
    found[one.name] = one.value === "" ? undefined : Number(one.value);
  }
  return found;
}

/* `submit` gets an object of what was filled in; while it works the button cannot be pressed. */
export function form(name, fields, label, submit, kind) {
  const sends = make("button", { type: "submit", class: kind === "tall" ? "main" : "" }, label);
  return make("form", { "aria-label": name, class: kind || "fields", onsubmit: (event) => {
    event.preventDefault();
    sends.disabled = true;
    Promise.resolve(submit(filled(event.target), event.target)).finally(() => { sends.disabled = false; });
  } }, fields.map(field), sends);
}

/* Ask before something is done; resolves to what was filled in, or null. */
export function asked(title, text, label, { bad, fields } = {}) {
  return new Promise((resolve) => {
    let found = null;
    const box = make("dialog", { "aria-labelledby": "asked", onclose: () => { box.remove(); resolve(found); } },
      make("h2", { id: "asked" }, title), text ? (text instanceof Node ? text : make("p", null, text)) : null,
      make("form", { onsubmit: (event) => { event.preventDefault(); found = filled(event.target); box.close(); } },
        (fields || []).map(field),
        make("div", { class: "row" }, button("Cancel", () => box.close()),
          make("button", { type: "submit", class: bad ? "bad" : "main" }, label))));
    document.body.append(box);
    box.showModal();
  });
}

/* What an answer says of nodes, or of workers, that have not told what they have. */
export const without = ({ missing = [] }) => missing.length
  ? note(`This is without ${missing.map((one) => `${one.worker ? `worker ${one.worker}` : `node ${visible(one.node)}`}: ${one.reason}`).join("; ")}.`, "warn") : "";

/* A list by cursor: `fetch(cursor)` gives {rows, cursor, missing}, `draw(rows)` an element. Only what was
 * asked last is drawn: an answer of the page or the order before may come after it. */
export function pager(fetch, draw, failed) {
  const before = [];
  let here = "", next = null, latest = 0;
  const list = make("div");
  const back = button("Previous", () => go(before.pop() || ""));
  const on = button("Next", () => { before.push(here); go(next); });
  const bar = make("div", { class: "pager" }, back, on);
  const go = async (cursor) => {
    here = cursor;
    const turn = ++latest;
    try {
      const page = await fetch(cursor || undefined);
      if (turn !== latest) return;
      next = page.cursor;
      const focus = list.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      list.replaceChildren(without(page), draw(page.rows));
      if (focus) list.querySelector(`[href="${CSS.escape(focus)}"]`)?.focus();
      back.disabled = !before.length;
      on.disabled = !next;
      bar.hidden = !before.length && !next;
    } catch (error) { if (turn === latest) failed(error); }
  };
  return { element: [list, bar], again: () => go(here), first: () => { before.length = 0; return go(""); } };
}

/* At most one call at a time, at most every `pause` milliseconds, and one after the last wish. */
export function calmly(call, pause = 400) {
  let timer = 0, busy = false, wished = false;
  const run = async () => {
    timer = 0;
    busy = true;
    wished = false;
    try { await call(); } finally { busy = false; if (wished) wish(); }
  };
  const wish = () => {
    wished = true;
    if (!timer && !busy) timer = setTimeout(run, pause);
  };
  wish.end = () => { clearTimeout(timer); timer = -1; };
  return wish;
}

export const tabs = (page, list, now) => make("nav", { class: "tabs", "aria-label": "Parts of this page" },
  list.map(([key, label]) => make("a", { href: `#${page}/${key}`, "aria-current": key === now ? "page" : null }, label)));

// -- figures

export const number = (value) => Number.isInteger(value) ? value.toLocaleString("en")
  : value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 10 ? 2 : 1 });

export function short(value) {
  if (Math.abs(value) < 10000) return number(Math.round(value * 10) / 10);
  const units = ["", "k", "M", "G"];
  let at = 0;
  while (Math.abs(value) >= 1000 && at < 3) { value /= 1000; at += 1; }
  return `${Number(value.toPrecision(3))}${units[at]}`;
}

export function bytes(count) {
  if (count == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (Math.abs(count) >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${at ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

/* As the log has them, in the time of who looks: 2026-11-22 19:03:29. */
export const time = (seconds) => seconds == null ? "–" : new Date(seconds * 1000).toLocaleString("sv-SE");

export function span(seconds) {
  if (seconds == null) return "–";
  if (typeof seconds !== "number") return String(seconds);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [size, unit] of parts) {
    if (seconds >= 2 * size) return `${number(Math.floor(seconds / size))} ${unit}`;
  }
  return `${number(Math.round(seconds * 10) / 10)} s`;
}

/* Bytes as text where they are text (JSON laid out), else as hex beside it. */
export function payload(base64) {
  const data = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    if (!/[\x00-\x08\x0e-\x1f]/.test(text)) {
      try { return { kind: "JSON", text: JSON.stringify(JSON.parse(text), null, 2), size: data.length }; }
      catch { return { kind: "text", text, size: data.length }; }
    }
  } catch { /* not text */ }
  const lines = [];
  for (let at = 0; at < Math.min(data.length, 4096); at += 16) {
    const part = [...data.slice(at, at + 16)];
    lines.push(at.toString(16).padStart(6, "0") + "  " + part.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(49)
      + part.map((one) => one > 31 && one < 127 ? String.fromCharCode(one) : ".").join(""));
  }
  return { kind: "hex", text: lines.join("\n") + (data.length > 4096 ? "\n…" : ""), size: data.length };
}

/* The workers of a broker that has several; of one that does not answer little is known. */
export function workers(found) {
  const shown = (name, show) => (one) => one[name] === null ? "" : show(one[name]);
  return sheet("Workers", [], table("Workers", [["Worker", (w) => w.worker, "num"], ["Process", shown("pid", String), "num"],
    ["State", (w) => badge(w.state, w.state === "running" ? "good" : "warn")], ["Up", shown("uptime", span), "num"],
    ["Connections", shown("connections", number), "num"], ["Sessions", shown("sessions", number), "num"],
    ["Subscriptions", shown("subscriptions", number), "num"]], found));
}
