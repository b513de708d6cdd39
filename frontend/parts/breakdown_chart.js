/** Chart of reserved memory over a recording: requested, rounding, usable free and unusable free memory. */

import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown } from "vramscope/format.js";
import { ALL, drawEventsMap, eventsMap, windowOf } from "vramscope/parts/event_window.js";

const SETTLED_MS = 150; // delay of the request after the last change of the window

export class BreakdownChart {
  /**
   * Options:
   * load(part, parameters, signal)   requests a part of the recording
   * view()                           {from, to, event}: window (null: all) and chosen event
   * onView(window), onEvent(event)   called with the reader's choice
   * onLoaded(answer)                 called with each answer
   */
  constructor({ file, load, view, onView, onEvent, onLoaded }) {
    Object.assign(this, { view, onView });
    this.chart = chart({
      title: "Reserved memory",
      file,
      load: async (signal) => {
        const { from, to } = view();
        this.breakdown = await load("strip", { from, to, points: this.chart.points }, signal);
        this.drawWords();
        onLoaded(this.breakdown);
        return this.breakdown;
      },
      view: () => this.shown,
      mark: () => view().event,
      onZoom: (range) => this.zoom(range),
      onPlace: (place, how) => how === "click" && place && onEvent(Math.round(place.x)),
      onDrawn: () => this.mark(),
    });
    this.chart.classList.add("wide", "strip");
    this.chart.dataset.figure = "strip";
    this.words = h("div", { class: "map-words" });
    this.map = eventsMap((range) => this.zoom(range));
    this.chart.insertBefore(this.words, this.chart.querySelector(".chart-body"));
    this.chart.append(this.map.element);
  }

  get element() {
    return this.chart;
  }

  reload() {
    return this.chart.reload();
  }

  close() {
    clearTimeout(this.settling);
  }

  /** Range of the axis: the window of the newest answer, not of a pending request. */
  get shown() {
    const { from, to, events } = this.breakdown ?? {};
    return from > -1 || to < events ? { from, to } : {};
  }

  zoom(range) {
    clearTimeout(this.settling);
    this.settling = setTimeout(
      () => this.onView(windowOf(range, this.breakdown?.events ?? Infinity)),
      range ? SETTLED_MS : 0,
    );
  }

  /** Moves the cursor to the chosen event. */
  mark() {
    this.chart.showCursor(this.view().event);
  }

  drawWords() {
    const { highest, from, to, events, outline } = this.breakdown;
    const part = from > -1 || to < events;
    const place =
      highest.event < 0
        ? "the start"
        : `event ${count(highest.event)}${isKnown(highest.step) && highest.step >= 0 ? ` · step ${count(highest.step)}` : ""}`;
    fill(
      this.words,
      h(
        "span",
        {},
        h("strong", {}, bytes(highest.reserved_bytes)),
        ` peak reserved ${part ? "in view" : "of the recording"}: ${place}`,
      ),
      part &&
        h(
          "button",
          { class: "chip zoom-chip", type: "button", title: "reset the zoom (Esc)", onclick: () => this.onView(ALL) },
          `events ${count(Math.max(0, from))} – ${count(to)}  ✕`,
        ),
      h("span", { class: "muted" }, "drag to zoom, click to select an event"),
    );
    drawEventsMap(
      this.map,
      { event: outline.event, used: outline.in_use_bytes, reserved: outline.reserved_bytes },
      events,
      part ? { from, to } : ALL,
    );
  }
}
