// Lines over time.

import uPlot from "./uPlot.js";
import { colour, dashes, sheet, token } from "./marks.js";

const KEPT = 600; // readings: five minutes

/** A chart of lines that may come and go; each is {label, mark, kind}: `mark` its colour, `kind` its dashes. */
export class Chart {
  constructor(box, unit) {
    this.box = box;
    this.unit = unit;
    this.times = [];
    this.columns = new Map(); // values by label
    this.lines = [];
    this.plot = null;
    this.list = document.createElement("ul");
    this.list.className = "lines";
    box.after(this.list);
    new ResizeObserver(() => this.resize()).observe(box);
  }

  /** One more reading: a Map of values by label. */
  add(time, values) {
    for (const label of values.keys()) {
      if (!this.columns.has(label)) this.columns.set(label, this.times.map(() => null));
    }
    this.times.push(time);
    for (const [label, column] of this.columns) column.push(values.get(label) ?? null);
    while (this.times.length > KEPT) {
      this.times.shift();
      for (const column of this.columns.values()) column.shift();
    }
  }

  /** A gap: the readings that follow come after a time without any. */
  gap() {
    if (this.times.length) this.add(this.times.at(-1) + 0.001, new Map());
  }

  /** Draw these lines. */
  show(lines) {
    const same = JSON.stringify(lines) === JSON.stringify(this.lines);
    this.lines = lines;
    if (!same || !this.plot) this.rebuild();
    else this.plot.setData(this.data());
  }

  /** Again, with the colours of the present theme. */
  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.box.clientWidth;
    if (width > 0) this.plot = new uPlot(this.options(width), this.data(), this.box);
    this.list.replaceChildren(...this.lines.map((line) => this.name(line)));
  }

  resize() {
    const width = this.box.clientWidth;
    if (!this.plot) this.rebuild();
    else if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.box.clientHeight });
  }

  data() {
    const end = this.times.at(-1) ?? 0;
    const times = this.times.map((time) => time - end);
    return [times, ...this.lines.map(({ label }) => this.columns.get(label) ?? times.map(() => null))];
  }

  options(width) {
    const ink = token("--soft");
    const grid = { stroke: token("--rule"), width: 1 };
    const axis = { stroke: ink, grid, ticks: grid, font: "12px system-ui, sans-serif" };
    return {
      width,
      height: this.box.clientHeight,
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, range: (_, low) => [Math.min(low ?? 0, -30), 0] },
        y: { range: (_, low, high) => this.range(low, high) },
      },
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((t) => (t ? `${t} s`.replace("-", "\u2212") : "now")) },
        { ...axis, size: 56, values: (_, ticks) => ticks.map((t) => compact(t)) },
      ],
      series: [
        {},
        ...this.lines.map(({ label, mark, kind }) => ({
          label, stroke: colour(mark), width: 2, dash: dashes(kind), points: { show: false },
          spanGaps: false,
        })),
      ],
    };
  }

  /** Zero is always in sight, so that a line's height means something. */
  range(low, high) {
    if (low === null || high === null) return [0, 1];
    const room = 0.08 * (Math.max(high, 0) - Math.min(low, 0)) || 1;
    return [low < 0 ? low - room : 0, high > 0 ? high + room : 0];
  }

  name({ label, mark, kind }) {
    const entry = document.createElement("li");
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    canvas.style.width = "28px";
    canvas.style.height = "10px";
    const context = sheet(canvas, 28, 10);
    context.strokeStyle = colour(mark);
    context.lineWidth = 2;
    context.setLineDash(dashes(kind));
    context.beginPath();
    context.moveTo(0, 5);
    context.lineTo(28, 5);
    context.stroke();
    entry.append(canvas, ` ${label}`);
    return entry;
  }

  /** The newest values in words. */
  said() {
    const parts = this.lines.map(({ label }) => {
      const value = this.columns.get(label)?.at(-1);
      return `${label}: ${value == null ? "not known" : compact(value)}`;
    });
    return `${this.unit}. ${parts.join("; ")}.`;
  }
}

/** A number with its noun: 1 token, 2 tokens. */
export function pluralize(count, noun, nouns = `${noun}s`) {
  return `${count} ${count === 1 ? noun : nouns}`;
}

export function compact(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return `${Math.round(value / 1000)}k`;
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
}
