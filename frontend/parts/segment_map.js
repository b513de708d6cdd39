/** Map of segments at one event. A click zooms in. Hovering describes a block. */

import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, categoryName, countOf } from "vramscope/format.js";
import { stackList } from "vramscope/parts/allocation.js";

const CLOSER = 8; // factor of a zoom by click
const HOVER_MS = 70;
const LINES = 48;
const STATES = {
  active_allocated: "used",
  active_pending_free: "freed; another stream still uses it",
  inactive: "free",
};
const KEY = [
  ["block-used", "used"],
  ["block-free", "free"],
  ["block-pending", "waiting for a stream"],
  ["block-rounding", "rounding"],
];
const START = ["border", "start of a segment"];

export class SegmentMap {
  /**
   * `load(part, parameters, signal)` requests a part of the recording. `view()` and `onView({from, to} | null)`: range
   * of offsets.
   */
  constructor({ file, load, view, onView, title = "Segments" }) {
    Object.assign(this, { load, view, onView });
    this.chart = chart({
      title,
      file,
      numbers: false,
      load: async (signal) => {
        const { from, to } = view();
        const wide = this.chart.plot.clientWidth || 800;
        const answer = await load(
          "map",
          { from, to, lines: LINES, columns: Math.min(2048, Math.max(64, Math.round(wide))) },
          signal,
        );
        this.memoryMap = answer.read === false ? null : answer;
        fill(this.words);
        if (this.memoryMap) this.drawWords();
        const blocks = (answer.figure?.data ?? []).filter(({ meta }) => meta.kind === "block");
        this.drawKey(blocks.length ? blocks.map(({ meta }) => [meta.role, meta.label]) : KEY);
        const text = this.memoryMap ? "nothing is reserved at this event" : "unknown: segments were not read";
        return answer.figure
          ? answer
          : { figure: { data: [], layout: { annotations: [{ name: "statement", text }] } } };
      },
      onPlace: (place, how) => (how === "click" ? this.zoomIn(place) : this.point(place)),
      describe: () => this.sentence(),
    });
    this.chart.dataset.figure = "map";
    this.chart.classList.add("segment-map");
    this.words = h("div", { class: "map-words" });
    this.place = h(
      "div",
      { class: "map-place" },
      h("span", { class: "muted" }, "Point at a block to see its owner. Click to zoom."),
    );
    this.key = h("div", { class: "map-key" });
    this.drawKey(KEY);
    this.chart.insertBefore(this.words, this.chart.querySelector(".chart-body"));
    this.chart.append(this.key, this.place);
  }

  get element() {
    return this.chart;
  }

  reload() {
    return this.chart.reload();
  }

  close() {
    clearTimeout(this.hovering);
    this.request?.abort();
  }

  /** Resolves when no request is pending. */
  async settled() {
    while (this.chart.request) await new Promise((resolve) => setTimeout(resolve, 20));
  }

  /** Offset at a position of the chart, in bytes. Null between the lines or outside. */
  offsetOf(place) {
    const meta = this.chart.figure?.layout.meta;
    if (!place || !meta || !this.memoryMap) return null;
    const offset = Math.floor(meta.low + Math.round(place.y) * meta.line_bytes + place.x * meta.divisor);
    return offset >= this.memoryMap.from && offset < this.memoryMap.to ? offset : null;
  }

  zoomIn(place) {
    const offset = this.offsetOf(place);
    if (offset === null) return;
    const span = Math.max(4096, Math.round((this.memoryMap.to - this.memoryMap.from) / CLOSER));
    const from = Math.max(0, Math.min(offset - Math.round(span / 2), this.memoryMap.reserved_bytes - span));
    this.onView({ from, to: from + span });
  }

  point(place) {
    const offset = this.offsetOf(place);
    if (offset === this.pointed) return;
    this.pointed = offset;
    clearTimeout(this.hovering);
    if (offset === null) return;
    this.hovering = setTimeout(async () => {
      this.request?.abort();
      const request = (this.request = new AbortController());
      try {
        const block = await this.load("block", { offset }, request.signal);
        if (this.request === request && block) fill(this.place, this.blockDetails(block));
      } catch {
        // retried at the next move
      }
    }, HOVER_MS);
  }

  blockDetails(block) {
    const { segment } = block;
    const segmentText = `${segment.private_pool ? `private pool ${segment.private_pool.join(".")}` : `${segment.pool} pool`}${segment.expandable ? ", expandable" : ""}${segment.stream ? `, stream ${segment.stream}` : ""}`;
    return [
      h(
        "p",
        {},
        h("strong", {}, bytes(block.size_bytes)),
        ` ${STATES[block.state]}`,
        block.requested_bytes !== null &&
          block.requested_bytes !== block.size_bytes &&
          h("span", { class: "muted" }, ` · ${bytes(block.requested_bytes)} requested`),
        h("span", { class: "muted" }, ` · in a segment of ${bytes(segment.size_bytes)} (${segmentText})`),
      ),
      block.stack.length > 0
        ? stackList(block.stack)
        : block.state !== "inactive" && h("p", { class: "muted" }, "stack not recorded"),
    ];
  }

  /** Explains the colours: those of the blocks that are drawn, or those of cells. */
  drawKey(entries) {
    fill(
      this.key,
      [...entries, START].map(([role, label]) =>
        h("span", {}, h("span", { class: "swatch", style: { "--swatch": `var(--role-${role})` } }), categoryName(label)),
      ),
    );
  }

  drawWords() {
    const { memoryMap } = this;
    const part = memoryMap.to - memoryMap.from < memoryMap.reserved_bytes;
    fill(
      this.words,
      h(
        "span",
        {},
        `${bytes(memoryMap.reserved_bytes)} in ${countOf(memoryMap.segments, "segment")} · ${freeWords(memoryMap)}`,
      ),
      part &&
        h(
          "button",
          { class: "chip zoom-chip", type: "button", title: "reset the zoom (Esc)", onclick: () => this.onView(null) },
          `${bytes(memoryMap.from)} – ${bytes(memoryMap.to)}  ✕`,
        ),
      h("span", { class: "muted" }, memoryMap.exact ? "every block drawn" : "cells: share in use"),
    );
  }

  sentence() {
    const { memoryMap } = this;
    return memoryMap
      ? `Segment map: ${bytes(memoryMap.reserved_bytes)} reserved in ${countOf(memoryMap.segments, "segment")}, ${freeWords(memoryMap)}.`
      : "Segment map";
  }
}

/** Free memory and its pieces: "1,000 MiB free in 2 blocks, the largest 600 MiB". */
function freeWords({ free_bytes: free, free_pieces: pieces, largest_free_bytes: largest }) {
  if (pieces === 0) return "no free block";
  return `${bytes(free)} free in ${countOf(pieces, "block")}${pieces > 1 ? `, the largest ${bytes(largest)}` : ""}`;
}
