/* What pages are made of. Text is always text: nothing that comes from a client becomes markup. */
export function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child != null) made.append(child);
  return made;
}

export const card = (title, ...children) =>
  make("section", { class: "card" }, title ? make("h2", null, title) : null, ...children);

export function shown(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (value === true) return "yes";
  if (value === false) return "no";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/* columns: [heading, function of a row that gives text or an element] */
export function table(caption, columns, rows) {
  const head = make("tr", null, columns.map(([name]) => make("th", { scope: "col" }, name)));
  const body = rows.map((row) =>
    make("tr", null, columns.map(([, cell]) => {
      const found = cell(row);
      return make("td", null, found instanceof Node ? found : shown(found));
    })));
  if (!rows.length) body.push(make("tr", null, make("td", { colspan: columns.length }, "none")));
  return make("table", { "aria-label": caption }, make("thead", null, head), make("tbody", null, body));
}

export const pairs = (caption, value) =>
  table(caption, [["What", (row) => row[0].replaceAll("_", " ")], ["Value", (row) => row[1]]],
    Object.entries(value));

/* fields: [name, label, options or type]; `submit` gets an object of what was filled in. */
export function form(name, fields, button, submit) {
  const controls = fields.map(([key, label, kind, value]) => {
    const control = Array.isArray(kind)
      ? make("select", { name: key }, kind.map((one) => make("option", { value: one }, one || "any")))
      : make("input", { name: key, type: kind || "text", value,
        autocomplete: key === "username" ? "username" : kind === "password" ? "current-password" : "off" });
    return make("label", null, label, control);
  });
  return make("form", { "aria-label": name, onsubmit: (event) => {
    event.preventDefault();
    submit(Object.fromEntries(new FormData(event.target)));
  } }, controls, make("button", { type: "submit" }, button));
}

export const time = (seconds) => new Date(seconds * 1000).toLocaleString();

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${at ? count.toFixed(1) : count} ${units[at]}`;
}
