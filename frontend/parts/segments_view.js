/**
 * View of a recording's segments: reserved memory over time, map and size classes at one event, and what-ifs.
 *
 * The view is in the URL: `event` (none: the peak), window of the chart `from` and `to`, range of the map `low` and
 * `high`.
 */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { ALL, windowAround, integerOf, windowIn } from "vramscope/parts/event_window.js";
import { figuresOf, momentBar, peakVerdict } from "vramscope/parts/moment_bar.js";
import { ChartsFirst } from "vramscope/parts/phone_order.js";
import { SegmentMap } from "vramscope/parts/segment_map.js";
import { BreakdownChart } from "vramscope/parts/breakdown_chart.js";
import { WhatIf } from "vramscope/parts/whatif.js";
import { setQuery, store } from "vramscope/store.js";

const MOVING_MS = 60; // interval of updates while the slider is dragged
const FRAMES = 150; // number of events shown when a recording is played
const WHOLE_MAP = { low: null, high: null };

export class SegmentsView {
  /** Parameters of the URL that belong to this view. Another recording starts without them. */
  static VIEW = ["event", "from", "to", "low", "high"];

  event = -1;
  window = ALL;
  part = WHOLE_MAP;

  /** `file`: prefix of exported files. `said()`: notes that the page shows elsewhere. */
  constructor({ file, said = () => [] }) {
    this.said = said;
    const load = async (part, parameters, signal) => {
      if (!this.moments) throw new DOMException("no recording yet", "AbortError");
      return api.recording(this.moments.recording, part, parameters, signal);
    };
    this.breakdown = new BreakdownChart({
      file: `${file}-strip`,
      load,
      view: () => ({ ...this.window, event: this.event }),
      onView: (window) => setQuery(window),
      onEvent: (event) => this.goTo(event),
      onLoaded: ({ peak, out_of_memory: ends }) => this.drawFigures(peak, ends),
    });
    this.map = new SegmentMap({
      file: `${file}-segments`,
      load: (part, parameters, signal) => load(part, { event: this.event, ...parameters }, signal),
      view: () => ({ from: this.part.low, to: this.part.high }),
      onView: (range) => setQuery(range ? { low: range.from, high: range.to } : WHOLE_MAP),
    });
    this.sizes = chart({
      title: "Size classes",
      file: `${file}-sizes`,
      load: (signal) => load("sizes", { event: this.event }, signal),
    });
    this.sizes.dataset.figure = "sizes";
    this.whatIf = new WhatIf({ onEvent: (event) => this.goTo(event), said });
    this.verdict = h("div");
    this.figures = h("div");
    this.momentBarSlot = h("div");
    const charts = h("div", { class: "charts" }, this.breakdown.element);
    const around = h("div", { class: "around-charts" }, this.figures, this.whatIf.advice);
    this.element = h(
      "div",
      {},
      this.verdict,
      around,
      charts,
      this.momentBarSlot,
      h("div", { class: "charts" }, this.map.element, this.sizes),
      this.whatIf.element,
    );
    this.order = new ChartsFirst(charts, [around]);
  }

  drawFigures(peak, ends) {
    fill(this.verdict, peakVerdict(peak));
    fill(this.figures, figuresOf(this.moments, peak, ends));
  }

  /** Shows a recording. `moments`: answer of `/moments`. */
  open(moments) {
    this.moments = { ...moments, notes: moments.notes.filter((note) => !this.said().includes(note)) };
    this.playing = false;
    this.read();
    this.drawFigures(null, []);
    this.bar = momentBar(moments, { onEvent: (event) => this.goTo(event), onPlay: () => this.play() });
    fill(this.momentBarSlot, this.bar.element);
    this.drawMomentBar();
    for (const part of [this.breakdown, this.map, this.sizes]) part.reload();
    this.whatIf.open(moments);
  }

  close() {
    this.closed = true;
    clearTimeout(this.moving);
    clearTimeout(this.next);
    this.order.close();
    this.breakdown.close();
    this.map.close();
    this.whatIf.close();
  }

  /** Reads the view from the URL. Invalid values are ignored. */
  read() {
    const { query } = store.get();
    const event = integerOf(query.event);
    const [low, high] = [integerOf(query.low), integerOf(query.high)];
    this.event = event === null ? this.moments.peak_event : Math.max(-1, Math.min(event, this.moments.events - 1));
    this.window = windowIn(query);
    this.part = low >= 0 && high > low ? { low, high } : WHOLE_MAP;
  }

  /** Called when the URL changes. */
  update() {
    if (!this.moments) return;
    const { event, window, part } = this;
    this.read();
    if (window.from !== this.window.from || window.to !== this.window.to) this.breakdown.reload();
    if (event !== this.event) {
      this.breakdown.mark();
      this.drawMomentBar();
      this.moving ??= setTimeout(() => {
        this.moving = null;
        this.map.reload();
        this.sizes.reload();
      }, MOVING_MS);
    } else if (part.low !== this.part.low || part.high !== this.part.high) this.map.reload();
  }

  /** Goes to an event. The window moves if the event is outside. */
  goTo(event) {
    if (!this.moments) return;
    const at = Math.max(-1, Math.min(this.moments.events - 1, event));
    setQuery({ event: at === this.moments.peak_event ? null : at, ...windowAround(this.window, at) });
  }

  /** Goes to the start of the next step, or of the previous one. */
  step(by) {
    const starts = this.moments?.steps.map((step) => step.event) ?? [];
    const next = by > 0 ? starts.find((at) => at > this.event) : starts.findLast((at) => at < this.event);
    if (next !== undefined) this.goTo(next);
  }

  /** Resets the zoom: first of the map, then of the chart. */
  widen() {
    setQuery(this.part.low === null ? ALL : WHOLE_MAP);
  }

  /** Plays from here to the end, or from the start if at the end. Stops if it plays. */
  play() {
    this.playing = !this.playing;
    clearTimeout(this.next);
    if (this.playing && this.event >= this.moments.events - 1) this.goTo(-1);
    const on = async () => {
      if (this.closed || !this.playing) return;
      if (this.event >= this.moments.events - 1) this.playing = false;
      else {
        this.goTo(this.event + Math.max(1, Math.round(this.moments.events / FRAMES)));
        await this.map.settled();
        this.next = setTimeout(on, MOVING_MS);
      }
      this.drawMomentBar();
    };
    this.drawMomentBar();
    if (this.playing) on();
  }

  drawMomentBar() {
    this.bar.draw({ event: this.event, playing: this.playing });
  }
}
