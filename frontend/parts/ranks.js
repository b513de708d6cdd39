/** Table of a run's ranks with their peaks. A strip of step peaks for each rank makes a heat map. */

import { api } from "vramscope/api.js";
import { h, fill } from "vramscope/dom.js";
import { ago, bytes, count, isKnown, percent } from "vramscope/format.js";
import { known, meter } from "vramscope/parts/ui.js";
import { stateBadge } from "vramscope/parts/run_state.js";
import { highest } from "vramscope/series.js";
import { onThemeChange } from "vramscope/theme.js";

const STRIP_POINTS = 120;
const STRIPS_EVERY_MS = 15_000;
const ROWS_EVERY_MS = 5_000;
const PARALLEL_REQUESTS = 2;

export class RanksPanel {
  strips = new Map(); // rank -> values
  fetchedAt = -Infinity;

  constructor(onPick) {
    this.onPick = onPick;
    this.element = h("section", { class: "card ranks panels-gap", hidden: true });
    this.element.style.marginTop = "14px";
    onThemeChange(() => this.paint());
  }

  /** Draws the table again: without delay if `force` is set or a rank's state changed, else every few seconds. */
  draw(run, view, force = false) {
    const several = run.ranks.length > 1 || run.world_size > 1;
    this.element.hidden = !several;
    if (!several) return;
    this.run = run;
    const key = JSON.stringify([run.ranks.map((rank) => [rank.rank, rank.state]), view.rank, view.device]);
    if (!force && key === this.key && performance.now() - this.drawnAt < ROWS_EVERY_MS) return;
    this.key = key;
    this.drawnAt = performance.now();
    const peaks = run.ranks.map((rank) => rank.peak_allocated_bytes);
    const top = highest(peaks);
    const lowest = peaks.filter(isKnown).reduce((a, b) => Math.min(a, b), Infinity);
    const spread = top > 0 && Number.isFinite(lowest) ? 1 - lowest / top : null;
    const missingRanks = [];
    if (run.ranks.length < run.world_size && run.world_size <= 1024) {
      const seen = new Set(run.ranks.map((rank) => rank.rank));
      for (let rank = 0; rank < run.world_size; rank += 1) if (!seen.has(rank)) missingRanks.push(rank);
    }
    this.canvases = new Map();
    const rows = run.ranks.map((rank) => {
      const worst = isKnown(top) && rank.peak_allocated_bytes === top && spread > 0;
      const canvas = h("canvas", {
        role: "img",
        "aria-label": `step peaks of rank ${rank.rank} over the run`,
        width: STRIP_POINTS,
        height: 1,
      });
      this.canvases.set(rank.rank, canvas);
      const total = rank.devices[0]?.total_bytes ?? run.capacity_bytes;
      return h(
        "tr",
        { class: [worst && "worst", rank.rank === view.rank && "selected"].filter(Boolean).join(" ") },
        h(
          "td",
          {},
          h(
            "button",
            {
              class: "button quiet small",
              type: "button",
              onclick: () => this.onPick(rank.rank),
              title: "show this rank in the charts",
            },
            `rank ${rank.rank}`,
          ),
          worst && h("span", { class: "chip", title: "highest peak of all ranks" }, "highest"),
        ),
        h("td", {}, stateBadge(rank.state)),
        h(
          "td",
          { class: "muted where" },
          `${rank.host}${rank.devices[0] && rank.devices[0].index >= 0 ? ` · GPU ${rank.devices[0].index}` : ""}`,
        ),
        h(
          "td",
          { class: "number peak" },
          known(bytes(rank.peak_allocated_bytes)),
          meter(rank.peak_allocated_bytes, total),
        ),
        h("td", { class: "number reserved" }, known(bytes(rank.peak_reserved_bytes))),
        h("td", { class: "number steps" }, known(count(rank.steps))),
        h("td", { class: "number muted seen" }, rank.error_type ?? ago(rank.last_seen_seconds, Date.now() / 1000)),
        h("td", { class: "heat" }, canvas),
      );
    });
    fill(
      this.element,
      h(
        "header",
        {},
        h("h2", {}, "Ranks"),
        h(
          "span",
          { class: "muted" },
          `${run.ranks.length} of ${run.world_size} reporting${spread === null ? "" : `; peaks differ by ${percent(spread)}`}`,
        ),
        h("span", { class: "spring" }),
        h(
          "span",
          {
            class: "heat-scale",
            title: "Strip colour: peak allocated per step, from the lowest to the highest of all ranks",
          },
          (this.lowWords = h("span")),
          h("i"),
          (this.topWords = h("span")),
        ),
      ),
      missingRanks.length > 0 &&
        h(
          "p",
          { class: "pad muted" },
          `No data yet: rank${missingRanks.length > 1 ? "s" : ""} ${missingRanks.slice(0, 24).join(", ")}${missingRanks.length > 24 ? ", …" : ""}.`,
        ),
      h(
        "div",
        { class: "scroll ranks-frame" },
        h(
          "table",
          { class: "plain" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["Rank", "State", "Where"].map((name) => h("th", { class: name.toLowerCase(), scope: "col" }, name)),
              [
                ["Peak allocated", "peak"],
                ["Peak reserved", "reserved"],
                ["Steps", "steps"],
                ["Last seen", "seen"],
              ].map(([name, kind]) => h("th", { class: `number ${kind}`, scope: "col" }, name)),
              h("th", { scope: "col" }, "Step peaks over the run"),
            ),
          ),
          h("tbody", {}, rows),
        ),
      ),
    );
    this.paint();
    if (performance.now() - this.fetchedAt > STRIPS_EVERY_MS) this.fetchStrips();
  }

  async fetchStrips() {
    this.fetchedAt = performance.now();
    const run = this.run;
    const queue = run.ranks.filter((rank) => rank.devices.length);
    const take = async () => {
      for (let rank = queue.shift(); rank; rank = queue.shift()) {
        try {
          const answer = await api.series(run.run_id, {
            stream: "steps",
            names: "peak_allocated_bytes",
            rank: rank.rank,
            device: rank.devices[0].index,
            x: "step",
            points: STRIP_POINTS,
          });
          const series = answer.series.peak_allocated_bytes;
          this.strips.set(rank.rank, series?.max ?? series?.value ?? []);
          this.paint(rank.rank);
        } catch {
          // the strip stays empty
        }
      }
    };
    await Promise.all(Array.from({ length: PARALLEL_REQUESTS }, take));
    this.paint();
  }

  paint(only = null) {
    if (!this.canvases) return;
    // the scale is from the lowest to the highest step peak of all ranks, to show differences
    let [low, top] = [Infinity, -Infinity];
    for (const values of this.strips.values()) {
      for (const value of values) {
        if (!isKnown(value)) continue;
        if (value < low) low = value;
        if (value > top) top = value;
      }
    }
    if (!(top >= low)) return;
    this.lowWords.textContent = bytes(low);
    this.topWords.textContent = bytes(top);
    const style = getComputedStyle(document.documentElement);
    const stops = [0, 1, 2]
      .map((i) => style.getPropertyValue(`--heat-${i}`).trim())
      .map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    for (const [rank, canvas] of this.canvases) {
      if (only !== null && rank !== only) continue;
      const values = this.strips.get(rank);
      if (!values?.length) continue;
      canvas.width = values.length;
      const context = canvas.getContext("2d");
      values.forEach((value, i) => {
        if (!isKnown(value)) return;
        const share = top > low ? ((value - low) / (top - low)) * 2 : 1;
        const [from, to] = share < 1 ? [stops[0], stops[1]] : [stops[1], stops[2]];
        const part = share < 1 ? share : share - 1;
        context.fillStyle = `rgb(${from.map((channel, j) => Math.round(channel + (to[j] - channel) * part)).join(",")})`;
        context.fillRect(i, 0, 1, 1);
      });
    }
  }
}
