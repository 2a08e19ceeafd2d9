/* <live-chart heading="Messages a second" series="in,out">: the last five minutes, a point a second. */
const KEPT = 300;
const COLOURS = ["#0b63ce", "#c2570c", "#1a7f4b", "#8a3fb8"];

export class LiveChart extends HTMLElement {
  connectedCallback() {
    if (this.plot) return;
    const names = this.getAttribute("series").split(",");
    this.values = [[], ...names.map(() => [])];
    this.words = document.createElement("p");
    this.words.className = "soft";
    const heading = document.createElement("h2");
    heading.textContent = this.getAttribute("heading");
    const ink = getComputedStyle(this).color;
    const axis = { stroke: ink, grid: { stroke: "#8884", width: 1 }, ticks: { stroke: "#8884" } };
    this.append(heading);
    this.plot = new window.uPlot({
      width: Math.max(240, this.clientWidth - 34), height: 170,
      cursor: { drag: { x: false } }, axes: [axis, { ...axis, size: 60 }],
      scales: { y: { range: (u, low, high) => [0, Math.max(1, high * 1.1)] } },
      series: [{}, ...names.map((label, at) => ({ label, stroke: COLOURS[at], width: 2 }))],
    }, this.values, this);
    this.append(this.words);
    this.names = names;
  }
  add(at, ...numbers) {
    [at, ...numbers].forEach((value, place) => {
      this.values[place].push(value);
      if (this.values[place].length > KEPT) this.values[place].shift();
    });
    this.plot.setData(this.values);
    this.words.textContent = this.names
      .map((name, place) => `${name} ${Math.round(numbers[place] * 10) / 10}`).join(", ");
  }
}
customElements.define("live-chart", LiveChart);
