// A strip for each request: who guessed its last tokens.

import { pluralize } from "./charts.js";
import { fill, place, sheet } from "./marks.js";

const CELL = 7, GAP = 1, HEIGHT = 20, MOST = 400; // a cell in pixels; tokens kept
const SHOWN = 8; // strips
const LINGER = 6000; // milliseconds that a strip stays after its end

export class Strips {
  constructor(list) {
    this.list = list;
    this.rows = new Map(); // by request
  }

  /** The rounds of a frame: [request, drafter, drafted, guessed, own, done]. */
  add(rounds) {
    for (const [request, drafter, , guessed, own, done] of rounds) {
      let row = this.rows.get(request);
      if (!row) {
        if (!guessed && !own) continue;
        this.rows.set(request, (row = { cells: [], tokens: 0, guessed: 0, ended: 0, entry: null }));
      }
      for (let i = 0; i < guessed; i++) row.cells.push(place(drafter));
      for (let i = 0; i < own; i++) row.cells.push(-1);
      row.cells.splice(0, row.cells.length - MOST);
      row.tokens += guessed + own;
      row.guessed += guessed;
      if (done && !row.ended) row.ended = Date.now();
    }
  }

  clear() {
    this.rows.clear();
    this.list.replaceChildren();
    this.list.classList.add("empty");
  }

  draw() {
    for (const [request, row] of this.rows) {
      if (row.ended && Date.now() - row.ended > LINGER) this.drop(request);
    }
    const over = [...this.rows].filter(([, row]) => row.ended);
    for (const [request] of over.slice(0, Math.max(0, this.rows.size - SHOWN))) this.drop(request);
    for (const [request, row] of [...this.rows].slice(0, SHOWN)) this.one(request, row);
    this.list.classList.toggle("empty", !this.rows.size);
  }

  drop(request) {
    this.rows.get(request).entry?.remove();
    this.rows.delete(request);
  }

  one(request, row) {
    if (!row.entry) {
      row.entry = document.createElement("li");
      row.said = document.createElement("span");
      row.canvas = document.createElement("canvas");
      row.canvas.setAttribute("aria-hidden", "true");
      row.entry.append(row.said, row.canvas);
      this.list.append(row.entry);
    }
    const share = row.tokens ? Math.round((100 * row.guessed) / row.tokens) : 0;
    const when = row.ended ? ", ended" : "";
    row.said.textContent = `Request ${request}${when}: ${pluralize(row.tokens, "token")}, ${share}\u00a0% guessed`;
    const width = row.canvas.clientWidth;
    const context = sheet(row.canvas, width, HEIGHT);
    const room = Math.floor(width / (CELL + GAP));
    row.cells.slice(-room).forEach((cell, i) => {
      const low = cell < 0;
      fill(context, cell, i * (CELL + GAP), low ? HEIGHT * 0.6 : 0, CELL, low ? HEIGHT * 0.4 : HEIGHT);
    });
  }
}
