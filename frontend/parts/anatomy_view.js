/**
 * View of a recording: timeline, allocation, comparison of two events, advice and flamegraph. The view is in the URL.
 * Takes the id of a recording. Pages place `element`.
 */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { AdviceCard } from "vramscope/parts/advice.js";
import { Allocation } from "vramscope/parts/allocation.js";
import { AllocationDiff } from "vramscope/parts/allocation_diff.js";
import { Flame } from "vramscope/parts/flame.js";
import { windowAround, integerOf, windowIn } from "vramscope/parts/event_window.js";
import { TrainingPlans } from "vramscope/parts/training_plans.js";
import { PeakLines } from "vramscope/parts/peak_lines.js";
import { COLOURINGS, Timeline, eventText } from "vramscope/parts/timeline.js";
import { setQuery, store } from "vramscope/store.js";

/** View of the URL. Null for missing or invalid values. */
function readView(by) {
  const { query } = store.get();
  const one = (name, values) => (values.includes(query[name]) ? query[name] : null);
  return {
    ...windowIn(query),
    by:
      one(
        "by",
        COLOURINGS.map(([name]) => name),
      ) ?? by,
    detail: one("detail", ["areas", "allocations"]),
    event: integerOf(query.event),
    allocation: integerOf(query.allocation),
    a: integerOf(query.a),
    b: integerOf(query.b),
    flame: one("flame", ["module"]) ?? "stack",
    focus: query.focus ?? null,
    libraries: query.libraries === "1",
  };
}

export class AnatomyView {
  /** Parameters of the URL that belong to this view. Another recording starts without them. */
  static VIEW = ["by", "detail", "from", "to", "event", "allocation", "a", "b", "flame", "focus", "libraries"];

  /**
   * `file`: prefix of exported files. `by`: default grouping of allocations. `onRecord()`: requests a recording with
   * stacks; null if none can be made. `capacity()`: bytes of the card, or null.
   */
  constructor({ file, by = "category", onRecord = () => null, capacity = () => null }) {
    this.by = by;
    this.view = readView(by);
    const load = async (part, parameters, signal) => {
      if (!this.recording) throw new DOMException("no recording yet", "AbortError");
      try {
        return await api.recording(this.recording, part, parameters, signal);
      } catch (error) {
        if (part === "timeline" && error.name !== "AbortError") this.peakLines?.fail();
        throw error;
      }
    };
    this.timeline = new Timeline({
      file: `${file}-timeline`,
      load,
      view: () => this.view,
      onView: (change) => setQuery(change.by === this.by ? { ...change, by: null } : change),
      onPick: ({ event, allocation }) => setQuery({ event, allocation, focus: null }),
      onLoaded: (answer) => this.setAnswer(answer),
    });
    this.flame = new Flame({
      file: `${file}-flame`,
      load,
      view: () => ({
        event: this.view.event,
        by: this.view.flame,
        focus: this.view.focus,
        libraries: this.view.libraries,
      }),
      peakWords: () => this.timeline.defaultEventName,
      onView: (change) => setQuery(change),
      onRecord,
    });
    this.allocation = new Allocation({
      load,
      onEvent: (event) => this.goTo(event),
      onClose: () => setQuery({ allocation: null }),
    });
    this.allocationDiff = new AllocationDiff({
      load,
      onAllocation: (allocation) => setQuery({ allocation }),
      onClear: () => setQuery({ a: null, b: null }),
    });
    this.advice = new AdviceCard(); // its answer comes after the charts
    this.peakLines = by === "site" ? new PeakLines() : null; // without categories the advice would say "unknown"
    this.trainingPlans = new TrainingPlans(capacity);
    this.eventBar = h("div", { class: "view-bar moment-bar", hidden: true });
    const changes = [this.advice.element, this.trainingPlans.element];
    const flame = h("div", { class: "charts" }, this.flame.element);
    const inOrder = this.peakLines ? [flame, changes] : [changes, flame]; // without categories there is little to advise
    this.element = h(
      "div",
      { class: "anatomy-view" },
      this.peakLines?.element ?? this.advice.verdict,
      h("div", { class: "charts" }, this.timeline.element),
      this.eventBar,
      h("div", { class: "looked-at" }, this.allocation.element, this.allocationDiff.element),
      inOrder,
    );
  }

  /** Shows a recording from its beginning. Takes the answer of `/moments`. */
  open({ recording }) {
    this.recording = recording;
    this.answer = null;
    this.view = readView(this.by);
    this.timeline.reset();
    this.allocation.shown = undefined;
    this.allocationDiff.reset();
    this.peakLines?.clear();
    // The other answers take longer, and the server would compute them at the same time.
    const drawn = this.timeline.loadFirst();
    this.flame.reload();
    this.advice.open(recording, drawn);
    this.trainingPlans.open(recording, drawn);
    this.drawSelection();
  }

  /** Called when the URL changes. */
  update() {
    const before = this.view;
    this.view = readView(this.by);
    const differs = (...names) => names.some((name) => before[name] !== this.view[name]);
    if (differs("from", "to", "by", "detail")) this.timeline.reload();
    if (differs("event", "flame", "focus", "libraries")) this.flame.reload();
    this.drawSelection();
  }

  close() {
    for (const part of [this.timeline, this.allocation, this.allocationDiff, this.advice, this.trainingPlans])
      part.close();
  }

  setAnswer(answer) {
    this.answer = answer;
    this.drawPeakLines(answer);
    this.drawSelection();
  }

  /** Draws the peak by line from the first answer, or from another one if the URL asks for other groups or a part. */
  async drawPeakLines({ by, detail, from, to, events, ...answer }) {
    if (!this.peakLines || this.peakLines.isDrawn) return;
    this.peakLines.isDrawn = true;
    const { recording } = this;
    const isWhole = by === "site" && detail === "areas" && from <= -1 && to >= events;
    try {
      const whole = isWhole ? answer : await api.recording(recording, "timeline", { by: "site" });
      if (this.recording === recording) this.peakLines.show(whole, eventText);
    } catch {
      this.peakLines.element.hidden = true;
    }
  }

  /** Goes to an event. The window moves if the event is outside. */
  goTo(event) {
    setQuery({ event, ...windowAround(this.view, event) });
  }

  /** Moves the window by a share of its width: to the right, or to the left if negative. */
  pan(by) {
    this.timeline.pan(by);
  }

  /** Makes the window wider or narrower. */
  scale(factor) {
    this.timeline.scale(factor);
  }

  drawSelection() {
    const { event, a, b, allocation, by } = this.view;
    this.timeline.mark({ moment: event, a, b, allocation });
    this.allocation.show(allocation);
    this.allocationDiff.show(a, b, by === "category" ? "site" : by);
    this.drawEventBar();
  }

  drawEventBar() {
    this.eventBar.hidden = !this.answer;
    if (!this.answer) return;
    const { event, a, b } = this.view;
    const last = this.answer.events - 1;
    const { defaultEvent } = this.timeline;
    const key = JSON.stringify([event, a, b, last, defaultEvent]);
    if (key === this.eventBarKey) return;
    this.eventBarKey = key;
    const to = (label, at, title) =>
      h(
        "button",
        {
          class: "button small quiet",
          type: "button",
          title,
          "aria-pressed": String(event === at),
          onclick: () => (at === null ? setQuery({ event: null }) : this.goTo(at)),
        },
        label,
      );
    const here = event ?? defaultEvent.event;
    const set = (name, at) =>
      h(
        "button",
        {
          class: "button small",
          type: "button",
          title: `compare from or to this moment`,
          "data-set": name,
          onclick: () => setQuery({ [name]: here }),
        },
        at === null ? `Set ${name.toUpperCase()} here` : `Move ${name.toUpperCase()} here`,
      );
    fill(
      this.eventBar,
      h("span", { class: "muted" }, "Moment"),
      to("start", -1, "before the first event"),
      to("peak", null, this.timeline.defaultEventName),
      last >= 0 && to("end", last, "after the last event"),
      h(
        "span",
        { class: "tabular moment-words" },
        event === null
          ? `${this.timeline.defaultEventName}: ${eventText(defaultEvent)}`
          : event < 0
            ? "before the first event"
            : `event ${count(event)}`,
      ),
      h("span", { class: "spring" }),
      set("a", a),
      set("b", b),
    );
  }
}
