/**
 * Memory at the peak of the rank in view, in three bars: the card, PyTorch's reserved memory, and the tensors. Each bar
 * splits the first part of the bar above it. The parts are those of the chart of the memory over time. For a run on the CPU
 * there is one bar: parameters, gradients, optimizer state and buffers.
 */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown, percent, UNKNOWN } from "vramscope/format.js";
import { isOnCpu } from "vramscope/parts/view_bar.js";

const SEARCHED_STEPS = 200;
const EVERY_MS = 1_000; // shortest time between two requests: a leaking run has a new peak in each step
const LEVELS_OF_CPU = [
  ["parameters", "parameters"],
  ["gradients", "gradients"],
  ["optimizer", "optimizer state"],
  ["buffers", "buffers"],
];

/** Bars of an answer of `/peak`: `[{name, total, parts: [{name, bytes, role}]}]`, the card first. Empty if no peak is known. */
function barsOf({ levels, capacity_bytes: capacity }) {
  const bars = [];
  for (const [i, { level, total_bytes: total, parts }] of levels.entries()) {
    const inner = levels[i + 1];
    const own = parts.map(({ role, label, bytes: size }) => ({ name: label, role, bytes: size }));
    if (inner) own.unshift({ name: inner.level, role: inner.level === "reserved" ? "reserved-area" : inner.level, bytes: inner.total_bytes });
    if (level === "card") {
      const known = own.reduce((sum, part) => sum + (part.bytes ?? 0), 0);
      if (isKnown(capacity) && isKnown(total)) own.push({ name: "not in use", role: null, bytes: Math.max(0, capacity - total) });
      else if (isKnown(capacity)) own.push({ name: "not in use, or unknown", role: null, bytes: Math.max(0, capacity - known) });
      if (isKnown(capacity) || isKnown(total)) bars.push({ name: "card", total: capacity ?? total, parts: own });
    } else if (isKnown(total)) bars.push({ name: level, total, parts: own });
  }
  return bars;
}

/** Sentence on the nearest step whose categories are known, where those at the peak are not. */
function detailOf({ nearest_detailed: step }) {
  if (!step) return null;
  const parts = step.parts.map(({ label, bytes: size }) => `${label} ${bytes(size)}`).join(", ");
  return h(
    "p",
    { class: "muted detail" },
    `The categories of the peak were not read. In step ${count(step.step)}, with ${bytes(step.allocated_bytes)}: ${parts}.`,
  );
}

/** Bar of what a model on the CPU and its optimizer keep between two steps, by `end_categories` of a step. Empty if unknown. */
function cpuBarsOf(ended) {
  const parts = LEVELS_OF_CPU.filter(([key]) => isKnown(ended?.[key])).map(([role, name]) => ({
    name,
    role,
    bytes: ended[role],
  }));
  const total = parts.reduce((sum, part) => sum + part.bytes, 0);
  return total > 0 ? [{ name: "model", total, parts }] : [];
}

/** Where the peak was: "step 309 · backward". */
function placeOf({ step, first_step: first, phase, finished, rank, lower_bound: bound }, many) {
  const words = [];
  if (many) words.push(`rank ${rank}`);
  if (isKnown(step)) {
    if (!finished) words.push(`unfinished step ${count(step)}`);
    else words.push(first < step ? `steps ${count(first)} to ${count(step)}` : `step ${count(step)}`);
  }
  if (phase) words.push(phase);
  if (bound || !finished) words.push("lower bound");
  return words.join(" · ");
}

/** Card with the bars of a run. */
export class PeakStack {
  element = h("section", { class: "card peak-stack", hidden: true });
  key = null;
  ended = null; // end_categories of a step of a CPU run
  askAt = 0; // number of steps from which they are requested; it doubles, because some models are never counted

  /** Shows the peak of a rank and device. Fetches it if it is new. */
  show(run, place) {
    if (isOnCpu(place)) {
      if (this.ended === null && run.steps >= this.askAt) this.fetchModel(run, place);
      return;
    }
    const rank = run.ranks.find((one) => one.rank === place.rank);
    const key = JSON.stringify([place, rank?.peak_allocated_bytes, rank?.peak_reserved_bytes, run.state]);
    if (key === this.key) return;
    if (this.key === null && (run.steps > 0 || isKnown(rank?.peak_allocated_bytes))) this.draw("Memory at the peak", "", h("p", { class: "muted" }, "loading…"));
    this.key = key;
    this.wanted = { run, place };
    this.waiting ??= setTimeout(() => this.fetchPeak(), this.wait());
  }

  wait() {
    return Math.max(0, EVERY_MS - (Date.now() - (this.askedAt ?? 0)));
  }

  async fetchPeak() {
    const { wanted } = this;
    const { run, place } = wanted;
    this.askedAt = Date.now();
    try {
      const peak = await api.peak(run.run_id, { rank: place.rank, device: place.device });
      const bars = barsOf(peak);
      if (this.wanted === wanted) {
        const body = [bars.map(drawnBar), detailOf(peak)];
        if (bars.length) this.draw("Memory at the peak", placeOf(peak, run.world_size > 1), body);
        else this.element.hidden = true;
      }
    } catch {
      this.key = ""; // the stale banner reports it; the next change asks again
    }
    this.waiting = this.wanted === wanted ? null : setTimeout(() => this.fetchPeak(), this.wait());
  }

  draw(title, where, body) {
    this.element.hidden = false;
    fill(
      this.element,
      h("header", {}, h("h2", {}, title), h("span", { class: "muted" }, where)),
      h("div", { class: "pad" }, body),
    );
  }

  /** Fetches the newest step of a CPU run whose model was counted. */
  async fetchModel(run, place) {
    this.askAt = 2 * Math.max(1, run.steps);
    try {
      const steps = await api.steps(run.run_id, { rank: place.rank, limit: SEARCHED_STEPS });
      this.ended = steps.findLast((step) => isKnown(step.end_categories.parameters))?.end_categories ?? null;
      const bars = cpuBarsOf(this.ended);
      const where = "at the end of a step; activations are unknown on the CPU";
      if (bars.length) this.draw("Memory of the model", where, bars.map(drawnBar));
    } catch {
      // the card stays hidden
    }
  }
}

function drawnBar({ name, total, parts }, at) {
  const shown = parts.filter((part) => part.bytes === null || part.bytes > 0);
  return h(
    "div",
    { class: "level", "data-level": name },
    at > 0 && h("span", { class: "opens", "aria-hidden": "true" }),
    h("div", { class: "level-name" }, h("strong", {}, name), " ", h("span", { class: "tabular" }, bytes(total))),
    h(
      "div",
      { class: "level-bar", "aria-hidden": "true" },
      shown.filter((part) => part.bytes !== null).map((part) =>
        h("span", {
          title: `${part.name}: ${bytes(part.bytes)}, ${percent(part.bytes / total)} of ${name}`,
          class: part.role ? "" : "free",
          style: {
            "flex-grow": String(part.bytes / total),
            "--colour": part.role ? `var(--role-${part.role})` : "transparent",
          },
        }),
      ),
    ),
    h(
      "ul",
      {},
      shown.map((part) =>
        h(
          "li",
          { title: part.bytes === null ? UNKNOWN : `${count(part.bytes)} bytes` },
          h("span", {
            class: `swatch${part.role ? "" : " free"}`,
            style: { "--swatch": part.role ? `var(--role-${part.role})` : "transparent" },
          }),
          part.name,
          " ",
          h("span", { class: "tabular" }, bytes(part.bytes)),
          part.bytes !== null &&
            h("span", { class: "muted tabular" }, part.bytes / total < 0.005 ? " < 1 %" : ` ${percent(part.bytes / total, 0)}`),
        ),
      ),
    ),
  );
}
