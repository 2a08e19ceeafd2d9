/* The settings of a plugin as a form, by its own schema; what it does not hold is changed in the file. */
import { get, id, post } from "../api.js";
import { badge, card, facts, form, make, note, visible } from "../parts.js";

/* The first kind of a schema that a field of a form can be, with its limits. */
function simple(schema) {
  for (const one of schema.anyOf || [schema]) {
    if (one.enum && one.enum.every((value) => typeof value !== "object")) return { ...one, type: "enum" };
    if (["string", "integer", "number", "boolean"].includes(one.type)) return one;
    if (one.type === "array" && ["string", "integer"].includes(one.items?.type)) return { ...one, list: one.items.type };
  }
  return null;
}

const limits = (one) => [one.minimum !== undefined && `from ${one.minimum}`, one.exclusiveMinimum !== undefined && `more than ${one.exclusiveMinimum}`,
  one.maximum !== undefined && `to ${one.maximum}`, one.exclusiveMaximum !== undefined && `less than ${one.exclusiveMaximum}`].filter(Boolean).join(" ");

function control(field) {
  const one = simple(field.schema);
  const told = [field.given ? "set in the file" : field.required ? "must be set" : "default", limits(one), one.list ? "one a line" : "", field.schema.description]
    .filter(Boolean).join(", ");
  const more = { value: field.value ?? "", hint: told };
  if (one.type === "boolean") return [field.name, field.name, "checkbox", { ...more, value: field.value }];
  if (one.type === "enum") return [field.name, field.name, one.enum.map((value) => [value, String(value)]), more];
  if (one.list) return [field.name, field.name, "textarea", { ...more, value: (field.value || []).join("\n") }];
  if (one.type === "string") return [field.name, field.name, field.secret ? "password" : "text", field.secret ? { hint: `${told}; left as it is if empty` } : more];
  return [field.name, field.name, "number", { ...more, step: one.type === "integer" ? 1 : "any" }];
}

/* What was changed, as the interface takes it. */
function changes(fields, given) {
  const found = {};
  for (const field of fields) {
    const one = simple(field.schema);
    const value = given[field.name];
    if (field.secret) { if (value) found[field.name] = value; continue; }
    if (one.list) {
      const lines = value.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => one.list === "integer" ? Number(line) : line);
      if (JSON.stringify(lines) !== JSON.stringify(field.value || [])) found[field.name] = lines.length ? lines : null;
    } else if (one.type === "enum") {
      const chosen = one.enum.find((each) => String(each) === value);
      if (chosen !== field.value) found[field.name] = chosen;
    } else if ((value ?? "") !== (field.value ?? "")) found[field.name] = value === "" || value === undefined ? null : value;
  }
  return found;
}

export async function settings(called, about) {
  const path = `/plugins/${id(called)}/settings`;
  const box = card("Settings");
  const draw = ({ file, fields }) => {
    const simples = fields.filter((field) => simple(field.schema));
    const others = fields.filter((field) => !simple(field.schema));
    box.replaceChildren(make("div", { class: "title" }, make("h2", null, "Settings"), make("code", { class: "soft" }, visible(file))),
      simples.length ? form("Settings", simples.map(control), "Write the file", (given) => {
        const wanted = changes(simples, given);
        if (!Object.keys(wanted).length) return about.say("Nothing was changed.");
        return post(path, { changes: wanted }).then((told) => {
          draw(told);
          about.say("Written; in force when the plugin is loaded anew.");
        }, about.failed);
      }, "tall") : make("p", { class: "soft" }, "It has no settings that a form can hold."),
      others.length ? make("div", null, make("br"), facts(others.map((field) => [field.name, field.secret ? badge("not shown")
        : make("code", null, visible(JSON.stringify(field.value)).slice(0, 2000))]))) : "");
  };
  try { draw(await get(path)); } catch (error) { box.append(note(visible(error.message), "bad")); }
  return box;
}
