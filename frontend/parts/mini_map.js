/** Mini-map of a whole run. A brush shows the window in view. It can be dragged, resized, drawn, or moved by keys. */

import { h, fill, svg } from "vramscope/dom.js";
import { bytes } from "vramscope/format.js";
import { envelopePath, highest, shiftedWindow } from "vramscope/series.js";

const [WIDTH, HEIGHT] = [1000, 40];
const LEAST = 1 / 250; // share of the whole run: a narrower brush could not be grabbed
const KEYS = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity };

export class MiniMap {
  static FIELDS = ["allocated_bytes", "reserved_bytes", "process_rss_bytes"];

  extent = [0, 1];
  window = null; // window in view, in axis units; null: all
  dragged = null; // current drag of the pointer: {part, at, before, window, moved}

  /**
   * Options:
   * onWindow({from, to} | null)   called with the reader's choice; null: all
   * words(value)                  position on the axis, in words
   * ticks(from, to, most)         {values, texts}
   * label                         name of the whole range
   */
  constructor({ onWindow, words, ticks, label = "The whole run" }) {
    Object.assign(this, { onWindow, words, ticks, label });
    const part = (name, words) =>
      h("div", {
        class: `brush-${name}`,
        "data-part": name,
        role: "slider",
        tabindex: "0",
        "aria-label": words,
        onkeydown: (event) => this.press(name, event),
      });
    this.drawing = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      "aria-hidden": "true",
    });
    this.brush = part("window", "Window in view");
    this.start = part("start", "Start of the window");
    this.end = part("end", "End of the window");
    this.scale = h("div", { class: "mini-scale", "aria-hidden": "true" });
    this.field = h(
      "div",
      {
        class: "mini-field",
        title: "drag to zoom, double-click to reset",
        onpointerdown: (event) => this.startDrag(event),
        onpointermove: (event) => this.moveDrag(event),
        onpointerup: () => this.endDrag(),
        onpointercancel: () => this.endDrag(),
        ondblclick: () => this.onWindow(null),
      },
      this.drawing,
      h("div", { class: "brush-shade before" }),
      h("div", { class: "brush-shade after" }),
      this.brush,
      this.start,
      this.end,
    );
    this.element = h(
      "section",
      { class: "card mini-map", role: "group", "aria-label": this.label },
      this.field,
      this.scale,
    );
  }

  /** Takes an answer of `/series` for the whole run. `zero`: origin of the x values. `extent`: range of the axis. */
  setRows({ x_values: x, series }, zero, extent) {
    this.extent = extent[1] > extent[0] ? extent : [extent[0], extent[0] + 1];
    const at = x.map((value) => value - zero);
    const low = (name) => series[name]?.min ?? series[name]?.value ?? [];
    const high = (name) => series[name]?.max ?? series[name]?.value ?? [];
    const knows = (name) => highest(high(name)) !== null;
    const names = knows("allocated_bytes")
      ? ["reserved_bytes", "allocated_bytes"].filter(knows)
      : ["process_rss_bytes"].filter(knows);
    const top = highest(names.map((name) => highest(high(name)))) ?? 0;
    const path = (name, from) =>
      svg("path", { class: name, d: envelopePath(at, from, high(name), this.extent, top, WIDTH, HEIGHT) });
    // a light area from zero to the maximum, and on it the span between minimum and maximum
    this.drawing.replaceChildren(
      ...names
        .flatMap((name) => [path(name, null), path(name, low(name))])
        .map((one, i) => (one.classList.add(i % 2 ? "span" : "ground"), one)),
    );
    this.element.hidden = names.length === 0;
    this.about = `${this.label}, up to ${bytes(top)} ${names.at(-1) === "process_rss_bytes" ? "resident" : "reserved"}`;
    this.element.setAttribute("aria-label", this.about);
    this.draw();
  }

  /** Shows a window: {from, to}, or null for all. */
  show(window) {
    this.window = window;
    if (!this.dragged) this.draw();
  }

  /** Range that the brush covers. */
  get covered() {
    const [first, last] = this.extent;
    const { from, to } = this.dragged?.window ?? this.window ?? { from: first, to: last };
    return { from: Math.min(last, Math.max(first, from)), to: Math.min(last, Math.max(first, to)) };
  }

  draw() {
    const [first, last] = this.extent;
    const { from, to } = this.covered;
    const share = (value) => `${(100 * (value - first)) / (last - first)}%`;
    this.field.style.setProperty("--from", share(from));
    this.field.style.setProperty("--to", share(to));
    this.field.classList.toggle("all", !this.window && !this.dragged);
    const setSlider = (element, value, text) => {
      for (const [name, number] of [
        ["valuemin", first],
        ["valuemax", last],
        ["valuenow", value],
      ])
        element.setAttribute(`aria-${name}`, String(Number(number.toFixed(3))));
      element.setAttribute("aria-valuetext", text);
    };
    setSlider(this.brush, (from + to) / 2, `${this.words(from)} to ${this.words(to)}`);
    setSlider(this.start, from, this.words(from));
    setSlider(this.end, to, this.words(to));
    const { values, texts } = this.ticks(first, last, Math.max(2, Math.floor((this.field.clientWidth || 900) / 110)));
    // labels at the edges are moved inside
    const at = (value) =>
      value < first + (last - first) * 0.04 ? "0" : value > last - (last - first) * 0.04 ? "-100%" : "-50%";
    const key = texts.join("|") + last;
    if (key === this.scaleKey) return;
    this.scaleKey = key;
    fill(
      this.scale,
      values.map((value, i) => h("span", { style: { left: share(value), translate: `${at(value)} 0` } }, texts[i])),
    );
  }

  placeOf(event) {
    const { left, width } = this.field.getBoundingClientRect();
    const [first, last] = this.extent;
    return first + (Math.min(1, Math.max(0, (event.clientX - left) / width)) || 0) * (last - first);
  }

  startDrag(event) {
    if (event.button !== 0) return;
    const at = this.placeOf(event);
    let part = event.target.dataset.part ?? "new";
    if (part === "window" && !this.window) part = "new"; // all is in view, so there is no brush to move
    this.dragged = { part, at, before: this.covered, window: this.window && this.covered, moved: false };
    this.field.setPointerCapture(event.pointerId);
  }

  moveDrag(event) {
    if (!this.dragged) return;
    const { part, at, before } = this.dragged;
    const here = this.placeOf(event);
    this.dragged.moved ||= Math.abs(here - at) > (this.extent[1] - this.extent[0]) / 400;
    if (!this.dragged.moved) return;
    this.dragged.window =
      part === "new"
        ? { from: Math.min(at, here), to: Math.max(at, here) }
        : shiftedWindow(before, part, here - at, this.extent, this.least);
    this.draw();
  }

  endDrag() {
    const dragged = this.dragged;
    this.dragged = null;
    if (dragged?.moved)
      this.choose(
        dragged.part === "new" ? shiftedWindow(dragged.window, "end", 0, this.extent, this.least) : dragged.window,
      );
    else this.draw();
  }

  press(part, event) {
    const direction = KEYS[event.key];
    if (direction === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const { from, to } = this.covered;
    const span = this.extent[1] - this.extent[0];
    const by = part === "window" ? (to - from) / 10 : span / (event.shiftKey ? 20 : 100);
    this.choose(
      shiftedWindow(
        { from, to },
        part,
        Number.isFinite(direction) ? direction * by : Math.sign(direction) * span,
        this.extent,
        this.least,
      ),
    );
  }

  get least() {
    return (this.extent[1] - this.extent[0]) * LEAST;
  }

  choose({ from, to }) {
    const [first, last] = this.extent;
    const all = from <= first && to >= last;
    this.window = all ? null : { from, to };
    this.draw();
    this.onWindow(this.window);
  }
}
