/* The last lines of the log as they come, and the levels of its modules. */
import { get, post } from "../api.js";
import { button, card, facts, form, head, make, sheet, table, visible } from "../parts.js";

const KEPT = 2000;
const LEVELS = ["debug", "info", "warn", "error", "critical"];
const clean = (line) => visible(line).replaceAll("\\u{a}", "\n");

export async function log(main, about) {
  const box = make("pre", { class: "box log", tabindex: 0, role: "region", "aria-label": "Lines of the log" });
  const levels = make("div");
  let last = 0, words = "", timer = 0, paused = false;
  const lines = [];
  const fits = (line) => line.toLowerCase().includes(words);
  const draw = (added) => {
    const below = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
    if (added) for (const line of added.filter(fits)) box.append(row(line));
    else box.replaceChildren(...lines.filter(fits).map(row));
    while (box.childElementCount > KEPT) box.firstElementChild.remove();
    if (below || !added) box.scrollTop = box.scrollHeight;
  };
  const row = (line) => {
    const level = /^\S+ (debug|info|warn|error|critical)\b|"level": "(\w+)"/.exec(line);
    return make("span", { class: `line ${level ? level[1] || level[2] : ""}` }, clean(line) + "\n");
  };
  const look = async () => {
    if (!paused) {
      const found = await get("/log/lines", { after: last }).catch(() => null);
      if (timer < 0) return;
      if (found && found.last < last) { lines.length = 0; last = 0; draw(); }
      else if (found && found.lines.length) {
        last = found.last;
        lines.push(...found.lines);
        lines.splice(0, lines.length - KEPT);
        draw(found.lines);
      }
    }
    timer = setTimeout(look, 1000);
  };
  const show = async () => {
    const told = await get("/log");
    levels.replaceChildren(card("Levels", facts([["Written to", told.to], ["All modules", told.level],
      ...Object.entries(told.modules), ["Lines", told.lines], ["Dropped", told.dropped], told.fault && ["Fault", told.fault]]),
    about.may("operator") ? make("div", null, make("br"), form("Level", [["module", "Module, all if left out", "text", { placeholder: "mqttd.broker" }],
      ["level", "Level", [...LEVELS.map((one) => [one, one]), ["", "as the configuration says"]], { value: "info" }]], "Set",
    ({ module, level }) => post("/log/level", { module, level: level || null }).then(show, about.failed))) : ""));
  };
  const pause = button("Pause", () => {
    paused = !paused;
    pause.textContent = paused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(paused));
  }, "", { "aria-pressed": "false" });
  main.append(head("Log", "The last thousand lines, as they come.", pause),
    sheet("", [], form("Filter", [["words", "Lines with", "search"]], "Show", (given) => { words = given.words.toLowerCase(); draw(); }), box), levels);
  await Promise.all([show(), look()]);
  return () => { clearTimeout(timer); timer = -1; };
}
