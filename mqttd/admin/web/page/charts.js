/* <live-chart>: lines over the last minutes, drawn again when there is more.
 *
 * `lines()` gives [{label, values}], `times()` the seconds that they are at, `unit` writes a value.
 * What is drawn is told in words below, as it is now or where the pointer is. */
import { make, short } from "./parts.js";

const colour = (at) => getComputedStyle(document.documentElement).getPropertyValue(`--c${1 + at % 6}`).trim();
const soft = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

export class LiveChart extends HTMLElement {
  constructor() {
    super();
    this.legend = make("ul", { class: "legend" });
    this.place = make("div", { class: "plot" });
    this.labels = "";
    this.pointed = null;
    this.sized = new ResizeObserver(() => this.plot && this.plot.setSize(this.room()));
    this.dyed = () => { this.labels = ""; this.draw(); };
  }

  connectedCallback() {
    this.replaceChildren(make("div", { class: "title" }, make("h2", null, this.heading)), this.place, this.legend);
    this.sized.observe(this.place);
    window.addEventListener("theme", this.dyed);
    this.draw();
  }

  disconnectedCallback() {
    this.sized.disconnect();
    window.removeEventListener("theme", this.dyed);
    if (this.plot) this.plot.destroy();
    this.plot = null;
    this.labels = "";
  }

  room() { return { width: Math.max(180, this.place.clientWidth), height: 150 }; }

  draw() {
    if (!this.isConnected) return;
    const lines = this.lines();
    const data = [this.times(), ...lines.map((line) => line.values)];
    const labels = lines.map((line) => line.label).join("\n");
    if (labels !== this.labels || !this.plot) {
      this.labels = labels;
      this.make(lines, data);
    } else this.plot.setData(data);
    this.tell(lines);
  }

  make(lines, data) {
    if (this.plot) this.plot.destroy();
    const axis = { stroke: soft("--soft"), grid: { stroke: soft("--line"), width: 1 }, ticks: { show: false },
      font: "11px system-ui" };
    this.plot = new window.uPlot({
      ...this.room(), legend: { show: false }, padding: [8, 6, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      axes: [{ ...axis, size: 28, space: 80, values: (u, at) => at.map(clock) },
        { ...axis, size: 74, space: 32, values: (u, at) => at.map((one) => this.unit(one)) }],
      scales: { x: { range: (u, low, high) => (high == null ? [Date.now() / 1000 - 60, Date.now() / 1000]
        : [Math.min(low, high - 60), high]) }, y: { range: (u, low, high) => [0, Math.max(this.least || 1, (high || 0) * 1.1)] } },
      hooks: { setCursor: [(u) => { this.pointed = u.cursor.idx ?? null; this.tell(this.lines()); }] },
      series: [{}, ...lines.map((line, at) => ({ label: line.label, stroke: colour(at), width: 1.75,
        points: { show: false }, fill: lines.length === 1 ? colour(at) + "1f" : undefined }))],
    }, data, this.place);
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", `${this.heading}: ${lines.map((line) => line.label).join(", ")}`);
  }

  tell(lines) {
    this.legend.replaceChildren(...lines.map((line, at) => {
      const mark = make("i");
      mark.style.background = colour(at);
      const value = this.pointed == null ? line.values.at(-1) : line.values[this.pointed];
      return make("li", null, mark, line.label, make("b", null, value == null ? "–" : this.unit(value)));
    }), this.pointed == null ? "" : make("li", null, clock(this.times()[this.pointed] || 0)));
  }
}
customElements.define("live-chart", LiveChart);

export function chart(heading, times, lines, unit = short, least = 1) {
  const made = make("live-chart", { class: "card" });
  Object.assign(made, { heading, times, lines, unit, least });
  return made;
}
