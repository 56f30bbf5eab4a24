// Events and packets per second over the last minutes, drawn by uPlot (vendored beside this file). Silence is a gap, not a line.

const KEPT = 300; // documents
const HEIGHT = 220;
const GAP_S = 15; // longer than the longest pause between two documents
const SHOWN_S = 60; // at least

const clock = (time) => new Date(1000 * time).toLocaleTimeString("en-GB");

export class Chart {
  constructor(parent) {
    this.parent = parent;
    this.data = [[], [], [], [], []];
    parent.classList.add("waiting");
    const color = (name) => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    const series = (name, dash) => ({ label: name, stroke: color(`--${name}`), width: 2, dash, points: { show: false } });
    this.plot = new window.uPlot(
      {
        width: this.width(),
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { range: (_plot, first, last) => [Math.min(first, last - SHOWN_S), last] }, y: { range: (_plot, _low, high) => [0, Math.max(1, high ?? 0) * 1.1] } },
        axes: [{ ...axis, values: (_plot, times) => times.map(clock) }, { ...axis, size: 64, values: (_plot, values) => values.map((value) => value.toLocaleString("en")) }],
        series: [{}, series("sent"), series("received", [8, 4]), series("forwarded", [12, 3, 3, 3]), series("lost", [2, 3])],
      },
      this.data,
      parent,
    );
    new ResizeObserver(() => this.plot.setSize({ width: this.width(), height: HEIGHT })).observe(parent);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot.redraw());
  }

  width() {
    return Math.max(this.parent.clientWidth, 200);
  }

  add(at, ...values) {
    const times = this.data[0];
    if (!times.length && values[0] === null) return; // there are no rates before the second document
    if (times.length && at - times.at(-1) > GAP_S) this.push(at - 1, [null, null, null, null]);
    this.push(at, values);
    if (times.length < 2) return; // uPlot shows a whole day around a single point
    this.parent.classList.remove("waiting");
    this.plot.setData(this.data);
  }

  push(at, values) {
    this.data[0].push(at);
    values.forEach((value, index) => this.data[index + 1].push(value));
    if (this.data[0].length > KEPT) for (const column of this.data) column.shift();
  }
}
