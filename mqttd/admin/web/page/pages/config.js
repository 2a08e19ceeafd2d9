/* The configuration in force: what stands where, what the file would change, and applying that. */
import { ask, post, tagged } from "../api.js";
import { asked, badge, button, card, form, head, make, note, sheet, table, visible } from "../parts.js";

export async function config(main, about) {
  const { told: found, tag } = await tagged("/config");
  const differ = found.keys.filter((key) => key.file !== null);
  const plan = make("div", { "aria-live": "polite" });
  const list = make("div");
  const draw = ({ words, which }) => list.replaceChildren(table("Keys", [["Key", (k) => make("code", null, k.key)],
    ["Value in force", (k) => make("span", { class: "mono" }, visible(k.value)), "wrap"],
    ["Comes from", (k) => k.source === "default" ? make("span", { class: "soft" }, "default") : visible(k.source.replace(/^.*\//, ""))],
    ["Changes", (k) => k.reload ? "while it runs" : "with a restart"],
    ["The file says", (k) => k.file === null ? "" : badge(visible(k.file), "warn")]],
  found.keys.filter((key) => (!words || key.key.includes(words) || key.value.includes(words))
    && (which !== "set" || key.source !== "default") && (which !== "differs" || key.file !== null))));
  const apply = async (warned) => {
    if (warned.length && !await asked("Apply in spite of this", make("ul", null, warned.map((one) => make("li", null, one))), "Apply", { bad: true })) return;
    await ask("POST", "/config/apply", null, { confirmed: warned.length > 0 }, { "If-Match": tag }).then((told) => {
      about.say(told.applied ? ["The configuration was applied.", ...told.notes].join(" ") : "Nothing was changed.");
      return about.again();
    }, about.failed);
  };
  const ahead = () => post("/config/plan").then((told) => plan.replaceChildren(
    sheet("What the file would change", told.changes.length || told.files.length || told.warnings.length ? about.may("administrator")
      ? [button("Apply", () => apply(told.warnings), "main", { id: "apply" })] : [] : [],
    ...told.warnings.map((one) => note(visible(one), "bad")),
    ...told.files.map((one) => make("div", null, note(visible(one.text)), one.kind === "rules" ? make("ul", { class: "mono" },
      [...one.removed.map((rule) => `- ${rule}`), ...one.added.map((rule) => `+ ${rule}`)].slice(0, 20)
        .map((rule) => make("li", null, visible(rule)))) : "")),
    table("Changes", [["Key", (c) => make("code", null, c.key)], ["In force", (c) => c.before, "wrap"], ["Will be", (c) => c.after, "wrap"],
      ["Effect", (c) => c.effect]], told.changes))), about.failed);
  const check = ({ text }) => post("/config/validate", { text }).then(({ mistakes }) => checked.replaceChildren(mistakes.length
    ? make("ul", null, mistakes.map((one) => make("li", null, visible(one)))) : note("It can be used.", "good")), about.failed);
  const checked = make("div", { "aria-live": "polite" });
  main.append(head("Configuration", found.path ? make("code", null, visible(found.path)) : "No file: an embedding program has given it.",
    button("Plan", ahead, "main", { id: "plan" })),
  differ.length ? note(`The file differs from what is in force in ${differ.length === 1 ? "one key" : `${differ.length} keys`}: plan, then apply.`) : "", plan,
  sheet("", [], form("Filter", [["words", "Key or value", "search"], ["which", "Show", [["", "all"], ["set", "set in the file"], ["differs", "the file differs"]]]],
    "Show", draw), list),
  card("Check a text", form("Check a text", [["text", "A configuration, as the file would have it", "textarea"]], "Check", check, "tall"), checked));
  draw({});
}
