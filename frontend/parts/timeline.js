/** Timeline of a recording: allocated memory after each event, as areas by group or as single allocations. */

import { hiddenRoles } from "vramscope/charts/roles.js";
import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown, seconds } from "vramscope/format.js";
import { ALL, drawEventsMap, eventsMap, scaledWindow, shiftedWindow, windowOf } from "vramscope/parts/event_window.js";
import { ChartsFirst } from "vramscope/parts/phone_order.js";

const SETTLED_MS = 150; // delay of the request after the last change of the window
const HOVER_MS = 70;
export const COLOURINGS = [
  ["category", "Category"],
  ["site", "Your line"],
  ["module", "Module"],
  ["phase", "Phase"],
];
const DETAILS = [
  ["areas", "Areas"],
  ["allocations", "Allocations"],
];

/** Event in words: "event 1 234 · step 3 · backward · block.0.mlp · 1.2 ms". */
export function eventText({ event, step, phase, module, seconds: after }) {
  const place = event < 0 ? "before the first event" : `event ${count(event)}`;
  return [
    place,
    isKnown(step) && `step ${count(step)}`,
    phase,
    module,
    isKnown(after) && `${seconds(after)} after the first event`,
  ]
    .filter(Boolean)
    .join(" · ");
}

/** Group of buttons of which one is chosen. */
export function choice(label, options, chosen, onChoose) {
  return h(
    "div",
    { class: "segmented", role: "group", "aria-label": label },
    options.map(([value, words]) =>
      h(
        "button",
        {
          type: "button",
          "data-value": value,
          "aria-pressed": String(value === chosen),
          onclick: () => onChoose(value),
        },
        words,
      ),
    ),
  );
}

export class Timeline {
  /**
   * Options:
   * load(part, parameters, signal)   requests a part of the recording
   * view()                           {from, to, by, detail}: window (null: all), grouping, and drawing (null: by zoom)
   * onView(change)                   called with the reader's choice
   * onPick({event, allocation})      called at a click; `allocation` may be null
   * onLoaded(answer)                 called with each answer, once it is drawn
   */
  constructor({ file, load, view, onView, onPick, onLoaded = () => {} }) {
    Object.assign(this, { load, view, onView, onPick, onLoaded });
    this.chart = chart({
      title: "Allocated memory, event by event",
      file,
      load: (signal) => this.fetch(signal),
      onZoom: (range) => this.zoom(range),
      onPlace: (place, how) => (how === "click" ? this.pick(place) : this.point(place)),
      onDrawn: () => this.marked(),
      describe: () => this.sentence(),
    });
    this.chart.classList.add("wide", "timeline");
    this.chart.dataset.figure = "timeline";
    this.bar = h("div", { class: "view-bar timeline-bar" });
    this.words = h("div", { class: "map-words", "aria-live": "off" });
    this.place = h(
      "div",
      { class: "timeline-place" },
      h("span", { class: "muted" }, "Point at an allocation to see its owner. Click to select, drag to zoom."),
    );
    this.miniMap = eventsMap((range) => this.zoom(range));
    this.lines = Object.fromEntries(
      ["a", "b", "moment"].map((name) => [
        name,
        h("div", {
          class: `cursor at-${name}`,
          hidden: true,
          "data-name": name === "moment" ? null : name.toUpperCase(),
        }),
      ]),
    );
    this.chart.querySelector(".plot-frame").append(...Object.values(this.lines));
    const plot = this.chart.querySelector(".chart-body");
    plot.before(this.bar, this.words);
    this.chart.append(this.miniMap.element, this.place);
    this.order = new ChartsFirst(plot, [this.bar, this.words]);
    this.marks = { a: null, b: null, moment: null };
    this.requests = {};
  }

  get element() {
    return this.chart;
  }

  /** Forgets the recording. */
  reset() {
    clearTimeout(this.settling);
    this.answer = null;
    this.outline = null;
    this.chosen = null;
  }

  close() {
    this.order.close();
    clearTimeout(this.settling);
    clearTimeout(this.hovering);
    for (const request of Object.values(this.requests)) request.abort();
  }

  /** Fetches the picture before it is known to be in sight. */
  loadFirst() {
    this.chart.visible = true;
    return this.reload();
  }

  reload() {
    this.drawBar();
    return this.chart.reload();
  }

  /** Name of the event shown by default: the peak, or an event nearly as high with recorded stacks. */
  get defaultEventName() {
    if (!this.defaultEvent || this.defaultEvent.event === this.highest.event) return "the peak";
    return "near the peak, where stacks were recorded";
  }

  /**
   * Drawing of the timeline: areas for the whole recording, single allocations for a window, or the reader's choice.
   */
  get detail() {
    const { from, to, detail } = this.view();
    return detail ?? (from === null && to === null ? "areas" : "allocations");
  }

  async fetch(signal) {
    const { from, to, by } = this.view();
    const picture = this.detail;
    const areas = picture === "areas";
    const [answer, full] = await Promise.all([
      this.load(areas ? "timeline" : "allocations", { by, from, to, width: this.chart.wide }, signal),
      this.outline || (areas && from === null && to === null) ? null : this.load("timeline", { by }, signal),
    ]);
    if (!this.outline) {
      this.outline = (full ?? answer).outline;
      this.defaultEvent = (full ?? answer).look_at;
      this.highest = (full ?? answer).peak;
    }
    answer.detail = picture;
    this.chart.dataset.detail = picture;
    this.answer = answer;
    const { event, allocated_bytes: used, reserved_bytes: reserved } = this.outline;
    drawEventsMap(this.miniMap, { event, used, reserved }, answer.events, from === null ? ALL : answer);
    this.drawBar();
    this.drawWords();
    this.onLoaded(answer);
    return answer;
  }

  zoom(range) {
    clearTimeout(this.settling);
    this.settling = setTimeout(
      () => this.onView(windowOf(range, this.answer?.events ?? Infinity)),
      range ? SETTLED_MS : 0,
    );
  }

  /** Moves the window by a share of its width: to the right, or to the left if negative. */
  pan(by) {
    if (!this.answer || this.view().from === null) return;
    this.onView(shiftedWindow(this.answer, by));
  }

  /** Makes the window wider or narrower, around the event under the pointer. */
  scale(factor) {
    if (this.answer) this.onView(scaledWindow(this.answer, factor, this.pointedEvent ?? null));
  }

  /** Query for the allocation at a position of the chart. Null outside. Without a height if a series is hidden. */
  placeQuery(place) {
    if (!place || !this.answer || place.y < 0) return null;
    const { figure } = this.chart;
    const { from, to, by } = this.view();
    const hidden = this.chart.traces.some(
      ({ meta }) => (meta?.kind === "area" || meta?.kind === "polygon") && hiddenRoles.has(meta.role),
    );
    const event = Math.max(this.answer.from, Math.min(this.answer.to - 1, Math.floor(place.x)));
    const height = Math.floor(place.y * figure.layout.meta.divisor);
    return { event, by, from, to, detail: this.answer.detail, ...(hidden ? {} : { bytes: height }) };
  }

  point(place) {
    const query = this.placeQuery(place);
    this.pointedEvent = query?.event ?? null;
    const key = query && `${query.event} ${query.bytes}`;
    if (key === this.pointed) return;
    this.pointed = key;
    clearTimeout(this.hovering);
    if (!query) return;
    this.hovering = setTimeout(async () => {
      const found = await this.requestPlace("hover", query);
      if (found && !this.picking) this.drawPlace(found);
    }, HOVER_MS);
  }

  /** Handles a click. Moves of the pointer before the answer do not cancel it. */
  async pick(place) {
    const query = this.placeQuery(place);
    if (!query) return;
    this.picking = query;
    const found = await this.requestPlace("pick", query);
    if (this.picking !== query) return;
    this.picking = null;
    if (!found) return;
    this.drawPlace(found);
    this.onPick({ event: query.event, allocation: found.allocation?.allocation ?? null });
  }

  /** Requests the allocation at a position. A later request of the same kind cancels this one. */
  async requestPlace(kind, placeQuery) {
    this.requests[kind]?.abort();
    const request = (this.requests[kind] = new AbortController());
    try {
      return await this.load("at", placeQuery, request.signal);
    } catch {
      return null; // retried at the next move
    }
  }

  /** Marks the chosen event, the cursors A and B, and the chosen allocation. Null: none. */
  mark({ moment, a, b, allocation }) {
    this.marks = { moment, a, b };
    this.chosen = allocation;
    this.marked();
  }

  marked() {
    for (const [name, line] of Object.entries(this.lines)) this.chart.mark(line, this.marks[name]);
    this.outlineChosen();
  }

  /** Outlines the chosen allocation. Its corners are in the drawn polygons. */
  outlineChosen() {
    const outline = this.chart.traces.find((trace) => trace.meta?.kind === "outline");
    if (!outline || (this.outlined === this.chosen && this.outlinedIn === this.chart.figure)) return;
    this.outlined = this.chosen;
    this.outlinedIn = this.chart.figure;
    const before = outline.x.length;
    [outline.x, outline.y] = [[], []];
    for (const { x, y, meta } of this.chart.traces) {
      const at = meta?.rows?.indexOf(this.chosen) ?? -1;
      if (at < 0) continue;
      const [begin, end] = [at ? meta.ends[at - 1] + 1 : 0, meta.ends[at]];
      [outline.x, outline.y] = [
        [...x.slice(begin, end), x[begin]],
        [...y.slice(begin, end), y[begin]],
      ];
    }
    if (before || outline.x.length) this.chart.redraw();
  }

  drawBar() {
    const { by } = this.view();
    const key = `${by} ${this.detail} ${this.view().from}`;
    if (key === this.barKey) return;
    this.barKey = key;
    fill(
      this.bar,
      h("span", { class: "muted" }, "Colour by"),
      choice("Colour by", COLOURINGS, by, (value) => this.onView({ by: value })),
      h("span", { class: "muted" }, "drawn as"),
      choice("Draw as", DETAILS, this.detail, (value) => this.onView({ detail: value })),
    );
  }

  drawWords() {
    const { answer } = this;
    const part = answer.from > -1 || answer.to < answer.events;
    const left = answer.detail === "allocations" ? answer.left_out : null;
    fill(
      this.words,
      part && // the peak of the recording is above the chart
        h(
          "span",
          {},
          h("strong", {}, bytes(answer.peak.allocated_bytes)),
          ` at the peak in view: ${eventText(answer.peak)}`,
        ),
      part &&
        h(
          "button",
          { class: "chip zoom-chip", type: "button", title: "reset the zoom (Esc)", onclick: () => this.onView(ALL) },
          `events ${count(Math.max(0, answer.from))} – ${count(answer.to)}  ✕`,
        ),
      h(
        "span",
        { class: "muted", "data-drawn": true },
        left === null
          ? answer.joined > 0 &&
              `the largest ${count(answer.series.length - 1)} of ${count(answer.series.length - 1 + answer.joined)} drawn separately`
          : left === 0
            ? `all ${count(answer.drawn)} allocations in view are drawn`
            : `${count(answer.drawn)} allocations in view are drawn one by one; ${count(left)} smaller or shorter ones, at most ${bytes(answer.left_out_peak_bytes)} together, form the pale bands`,
      ),
    );
  }

  drawPlace({ moment, allocated_bytes: allocated, series, allocation, in_band: inBand, band }) {
    fill(
      this.place,
      h("span", { class: "tabular" }, eventText(moment), " · ", h("strong", {}, bytes(allocated)), " allocated"),
      allocation
        ? h(
            "span",
            {},
            h("strong", {}, bytes(allocation.size_bytes)),
            ` ${series.name}`,
            allocation.site && [" · ", h("code", {}, allocation.site)],
          )
        : inBand &&
            h("span", {}, `${series.name}: one of ${count(band.allocations)} in this band, ${bytes(band.bytes)} together`),
    );
  }

  sentence() {
    const { answer } = this;
    if (!answer) return "Allocated memory over the events";
    const series = answer.series.map(({ name, peak_bytes: size }) => `${name} ${bytes(size)}`).join(", ");
    return `Allocated memory from event ${answer.from} to ${answer.to}: at most ${bytes(answer.peak.allocated_bytes)}, at ${eventText(answer.peak)}; then ${series}.`;
  }
}
