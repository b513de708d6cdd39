/**
 * Heat map of a run's ranks: one row for each rank, one column for each part of its steps, coloured by the highest
 * allocated memory. The table of the ranks has the same peaks in words.
 */

import { api } from "vramscope/api.js";
import { fill, h, setText } from "vramscope/dom.js";
import { bytes, count, isKnown } from "vramscope/format.js";
import { onThemeChange } from "vramscope/theme.js";

const LABEL = "Allocated memory at the peak of each step, by rank.";
const COLUMNS = 240;
const EVERY_MS = 15_000;
const PARALLEL_REQUESTS = 2;
const MOST_HEIGHT = 224; // pixels of all rows together
const ROW_HEIGHTS = [3, 16]; // least and most pixels of a row

export class RankMap {
  peaks = new Map(); // rank -> {x, values}
  fetchedAt = -Infinity;

  constructor(onPick) {
    this.canvas = h("canvas", { role: "img", "aria-label": LABEL });
    this.chosen = h("span", { class: "rank-chosen", "aria-hidden": "true" });
    this.field = h("div", { class: "rank-field" }, this.canvas, this.chosen);
    this.names = h("div", { class: "rank-names", "aria-hidden": "true" });
    this.words = h("span", { class: "muted tabular" });
    this.low = h("span");
    this.top = h("span");
    this.ends = h("div", { class: "rank-ends muted", "aria-hidden": "true" });
    this.element = h(
      "section",
      { class: "card rank-map", hidden: true, "aria-label": "Heat map of the ranks" },
      h(
        "header",
        {},
        h("h2", {}, "Peak of each step, by rank"),
        this.words,
        h("span", { class: "spring" }),
        h("span", { class: "heat-scale" }, this.low, h("i"), this.top),
      ),
      h("div", { class: "rank-body" }, this.names, h("div", {}, this.field, this.ends)),
    );
    this.field.addEventListener("pointermove", (event) => this.point(event));
    this.field.addEventListener("pointerleave", () => this.describe());
    this.field.addEventListener("click", (event) => {
      const rank = this.rankAt(event);
      if (rank !== null) onPick(rank);
    });
    onThemeChange(() => this.paint());
  }

  show(run, view) {
    const ranks = Math.max(run.world_size, run.ranks.length);
    this.element.hidden = ranks < 2;
    if (ranks < 2) return;
    this.run = run;
    this.view = view;
    if (this.ranks !== ranks) {
      this.ranks = ranks;
      this.row = Math.min(ROW_HEIGHTS[1], Math.max(ROW_HEIGHTS[0], Math.floor(MOST_HEIGHT / ranks)));
      this.field.style.height = `${this.row * ranks}px`;
      const every = Math.max(1, Math.ceil(14 / this.row));
      const named = Array.from({ length: Math.ceil(ranks / every) }, (_, i) => i * every);
      fill(
        this.names,
        named.map((rank) => h("span", { style: { top: `${(rank + 0.5) * this.row}px` } }, `rank ${rank}`)),
      );
    }
    this.chosen.style.top = `${view.rank * this.row}px`;
    this.chosen.style.height = `${this.row}px`;
    this.paint();
    if (performance.now() - this.fetchedAt > EVERY_MS) this.fetch();
  }

  async fetch() {
    this.fetchedAt = performance.now();
    const { run } = this;
    const queue = run.ranks.filter((rank) => rank.devices.some((device) => device.index >= 0));
    const take = async () => {
      for (let rank = queue.shift(); rank; rank = queue.shift()) {
        try {
          const { x_values: x, series } = await api.series(run.run_id, {
            stream: "steps",
            names: "peak_allocated_bytes",
            rank: rank.rank,
            device: rank.devices[0].index,
            x: "step",
            points: COLUMNS,
          });
          const peaks = series.peak_allocated_bytes;
          this.peaks.set(rank.rank, { x, values: peaks?.max ?? peaks?.value ?? [] });
        } catch {
          // the row stays empty
        }
      }
    };
    await Promise.all(Array.from({ length: PARALLEL_REQUESTS }, take));
    this.paint();
  }

  /** Draws the rows. The colours reach from the lowest to the highest peak of all ranks, to show differences. */
  paint() {
    let [low, top, first, last] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, values } of this.peaks.values()) {
      if (x.length) [first, last] = [Math.min(first, x[0]), Math.max(last, x.at(-1))];
      for (const value of values) if (isKnown(value)) [low, top] = [Math.min(low, value), Math.max(top, value)];
    }
    if (!(top >= low)) return;
    Object.assign(this, { first, last });
    setText(this.low, bytes(low));
    setText(this.top, bytes(top));
    fill(this.ends, h("span", {}, `step ${count(Math.round(first))}`), h("span", {}, `step ${count(Math.round(last))}`));
    const stops = heatColours();
    this.canvas.width = COLUMNS;
    this.canvas.height = this.ranks;
    const context = this.canvas.getContext("2d");
    for (const [rank, { x, values }] of this.peaks) {
      for (let column = 0, i = 0; column < COLUMNS; column += 1) {
        const until = first + ((last - first) * (column + 1)) / COLUMNS;
        while (i < x.length - 1 && x[i] < until) i += 1;
        if (!isKnown(values[i]) || x[i] < first + ((last - first) * (column - 1)) / COLUMNS) continue;
        context.fillStyle = colourOf(top > low ? (values[i] - low) / (top - low) : 0.5, stops);
        context.fillRect(column, rank, 1, 1);
      }
    }
    this.describe();
  }

  rankAt(event) {
    const rank = Math.floor((event.clientY - this.field.getBoundingClientRect().top) / this.row);
    return this.run.ranks.some((one) => one.rank === rank) ? rank : null;
  }

  /** Says which rank, steps and bytes are below the pointer. */
  point(event) {
    const rank = this.rankAt(event);
    const { x, values } = this.peaks.get(rank) ?? { x: [], values: [] };
    if (rank === null || !x.length) return;
    const frame = this.field.getBoundingClientRect();
    const step = this.first + ((event.clientX - frame.left) / frame.width) * (this.last - this.first);
    const at = Math.max(0, x.findIndex((one) => one >= step));
    setText(this.words, `rank ${rank} · step ${count(Math.round(x[at]))} · ${bytes(values[at])}`);
  }

  /** Says which ranks have the highest and the lowest peak. */
  describe() {
    const known = this.run.ranks.filter((rank) => isKnown(rank.peak_allocated_bytes));
    if (!known.length) return;
    const sorted = known.toSorted((a, b) => b.peak_allocated_bytes - a.peak_allocated_bytes);
    const [most, least] = [sorted[0], sorted.at(-1)].map(
      (rank) => `rank ${rank.rank} with ${bytes(rank.peak_allocated_bytes)}`,
    );
    const missing = this.ranks - this.run.ranks.length;
    const sentence = `Highest: ${most}. Lowest: ${least}.${missing > 0 ? ` No data yet from ${count(missing)} ${missing === 1 ? "rank" : "ranks"}.` : ""}`;
    setText(this.words, sentence);
    this.canvas.setAttribute("aria-label", `${LABEL} ${sentence}`);
  }
}

/** The three colours of the heat map, as [red, green, blue]. */
function heatColours() {
  const style = getComputedStyle(document.documentElement);
  return [0, 1, 2]
    .map((i) => style.getPropertyValue(`--heat-${i}`).trim())
    .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
}

function colourOf(share, stops) {
  const [from, to, part] = share < 0.5 ? [stops[0], stops[1], share * 2] : [stops[1], stops[2], share * 2 - 1];
  return `rgb(${from.map((channel, i) => Math.round(channel + (to[i] - channel) * part)).join(",")})`;
}
