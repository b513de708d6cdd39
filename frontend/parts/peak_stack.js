/**
 * Memory of the card at its highest, in three bars: the card, PyTorch's reserved memory, and the tensors. Each bar splits
 * the first part of the bar above it. For a run on the CPU there is one bar: parameters, gradients, optimizer state and buffers.
 */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, isKnown, percent } from "vramscope/format.js";
import { isOnCpu } from "vramscope/parts/view_bar.js";

const SEARCHED_STEPS = 200;
const MOMENTS = "the highest value of each over the run, not always at the same time";
const CATEGORIES = [
  ["parameters", "parameters", "parameters"],
  ["gradients", "gradients", "gradients"],
  ["optimizer", "optimizer state", "optimizer"],
  ["buffers", "buffers", "buffers"],
  ["activations", "activations, temporaries", "activations"],
  ["other", "other", "other"],
];

/** Bars of a run: `[{name, total, parts: [{name, bytes, role}]}]`, the whole card first. Empty where the peak is unknown. */
function barsOf(run) {
  const rank =
    run.ranks.find((one) => isKnown(one.peak_allocated_bytes) && one.peak_allocated_bytes === run.peak_allocated_bytes) ??
    run.ranks[0];
  const { peak_allocated_bytes: allocated, peak_categories: categories } = run;
  const reserved = rank?.peak_reserved_bytes;
  const sizes = new Set(rank?.devices.map((device) => device.total_bytes));
  const capacity = sizes.size === 1 ? [...sizes][0] : null; // of cards that differ it is not known which had the peak
  if (!isKnown(allocated) || !isKnown(reserved) || reserved < allocated) return [];
  const bars = [
    {
      name: "reserved",
      total: reserved,
      parts: [
        { name: "allocated", bytes: allocated, role: "allocated" },
        { name: "reserved, not allocated", bytes: reserved - allocated, role: "unused" },
      ],
    },
    { name: "allocated", total: allocated, parts: categoriesOf(categories, allocated) },
  ];
  if (isKnown(capacity)) bars.unshift({ name: "card", total: capacity, parts: cardParts(rank, reserved, capacity) });
  return bars;
}

function cardParts(rank, reserved, capacity) {
  const used = Math.max(rank.peak_device_used_bytes ?? reserved, reserved);
  const outside = isKnown(rank.peak_process_device_bytes) ? Math.max(0, rank.peak_process_device_bytes - reserved) : null;
  const parts = [{ name: "reserved by PyTorch", bytes: reserved, role: "reserved" }];
  if (outside === null) parts.push({ name: "outside PyTorch and other processes", bytes: used - reserved, role: "other" });
  else {
    parts.push({ name: "this process outside PyTorch", bytes: Math.min(outside, used - reserved), role: "other" });
    parts.push({ name: "other processes", bytes: Math.max(0, used - reserved - outside), role: "retries" });
  }
  parts.push({ name: "free", bytes: Math.max(0, capacity - used), role: null });
  return parts;
}

function categoriesOf(categories, total) {
  const known = CATEGORIES.filter(([key]) => isKnown(categories?.[key])).map(([key, name, role]) => ({
    name,
    role,
    bytes: categories[key],
  }));
  const rest = total - known.reduce((sum, part) => sum + part.bytes, 0);
  return rest > 0 ? [...known, { name: "unknown", role: "unknown", bytes: rest }] : known;
}

/** Bar of what a model on the CPU and its optimizer keep between two steps, by `end_categories` of a step. Empty if unknown. */
function cpuBarsOf(ended) {
  const parts = categoriesOf(ended, 0);
  const total = parts.reduce((sum, part) => sum + part.bytes, 0);
  return total > 0 ? [{ name: "model", total, parts }] : [];
}

/** Card with the bars of a run. Empty where nothing is known. */
export class PeakStack {
  element = h("section", { class: "card peak-stack", hidden: true });
  key = null;
  ended = null; // end_categories of a step of a CPU run
  askAt = 0; // number of steps from which they are requested; it doubles, because some models are never counted

  show(run, place) {
    const onCpu = isOnCpu(place);
    if (onCpu && this.ended === null && run.steps >= this.askAt) this.fetchModel(run, place);
    const used = run.ranks.map((rank) => [rank.peak_device_used_bytes, rank.peak_reserved_bytes]);
    const key = JSON.stringify([onCpu, this.ended, run.peak_allocated_bytes, run.peak_categories, used]);
    if (key === this.key) return;
    this.key = key;
    const bars = onCpu ? cpuBarsOf(this.ended) : barsOf(run);
    this.element.hidden = !bars.length;
    fill(
      this.element,
      h(
        "header",
        {},
        h("h2", {}, onCpu ? "Memory of the model" : "Memory at the peak"),
        h("span", { class: "muted" }, onCpu ? "at the end of a step; activations are unknown on the CPU" : MOMENTS),
      ),
      h("div", { class: "pad" }, bars.map(drawnBar)),
    );
  }

  /** Fetches the newest step of a CPU run whose model was counted. */
  async fetchModel(run, place) {
    this.askAt = 2 * Math.max(1, run.steps);
    try {
      const steps = await api.steps(run.run_id, { rank: place.rank, limit: SEARCHED_STEPS });
      this.ended = steps.findLast((step) => isKnown(step.end_categories.parameters))?.end_categories ?? null;
      if (this.ended) this.show(run, place);
    } catch {
      // the card stays hidden
    }
  }
}

function drawnBar({ name, total, parts }, at) {
  const shown = parts.filter((part) => part.bytes > 0);
  return h(
    "div",
    { class: "level", "data-level": name },
    at > 0 && h("span", { class: "opens", "aria-hidden": "true" }),
    h("div", { class: "level-name" }, h("strong", {}, name), " ", h("span", { class: "tabular" }, bytes(total))),
    h(
      "div",
      { class: "level-bar", "aria-hidden": "true" },
      shown.map((part) =>
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
          { title: `${part.bytes.toLocaleString("en")} bytes` },
          h("span", {
            class: `swatch${part.role ? "" : " free"}`,
            style: { "--swatch": part.role ? `var(--role-${part.role})` : "transparent" },
          }),
          part.name,
          " ",
          h("span", { class: "tabular" }, bytes(part.bytes)),
          h("span", { class: "muted tabular" }, part.bytes / total < 0.005 ? " < 1 %" : ` ${percent(part.bytes / total, 0)}`),
        ),
      ),
    ),
  );
}
