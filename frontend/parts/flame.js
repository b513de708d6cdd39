/** Flamegraph of the memory alive at an event. A click on a box makes it the root. */

import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count } from "vramscope/format.js";
import { choice, eventText } from "vramscope/parts/timeline.js";

const LEVEL_PX = 21;
const [LEAST_PX, MOST_PX] = [120, 900];

/** Note about memory without a stack. Null if there is none. `record`: requests a recording with stacks, or null. */
function missingStacksNote({ stacks_from: from, total_bytes: total, without_stack_bytes: without }, record) {
  if (without === 0 || total === 0) return null;
  const since =
    from > 0 ? `stacks are recorded from event ${count(from)} on` : "some was allocated before the recording";
  const why = from === null ? "no stacks were recorded" : `${since}; autograd threads have no Python frames`;
  return h(
    "span",
    { class: "muted flame-missing" },
    `${bytes(without)} without a stack: ${why}.`,
    from === null &&
      record && [" ", h("button", { class: "button small", type: "button", onclick: record }, "Record now, with stacks")],
  );
}

export class Flame {
  /**
   * Options:
   * load(part, parameters, signal)   requests a part of the recording
   * view()                           {event (null: the peak), by, focus, libraries}
   * peakWords()                      name of the event that is shown if none is chosen
   * onView(change)                   called with the reader's choice
   * onRecord()                       function that requests a recording with stacks; null if none can be made
   */
  constructor({ file, load, view, peakWords, onView, onRecord }) {
    Object.assign(this, { load, view, peakWords, onView, onRecord });
    this.chart = chart({
      title: "Allocated by",
      file,
      numbers: false,
      load: async (signal) => {
        const { event, by, focus, libraries } = view();
        const flamegraph = await load(
          "flame",
          { event, by, focus, libraries: libraries || null, width: this.chart.wide },
          signal,
        );
        this.flamegraph = flamegraph;
        const levels = flamegraph.figure.layout.meta?.levels ?? 1;
        this.frame.style.setProperty(
          "min-height",
          `${Math.max(LEAST_PX, Math.min(MOST_PX, levels * LEVEL_PX + 56))}px`,
        );
        this.draw();
        return flamegraph;
      },
      onPick: (point) => onView({ focus: point.customdata }),
      describe: () => this.sentence(),
    });
    this.frame = this.chart.querySelector(".plot-frame");
    this.chart.classList.add("wide", "flame");
    this.chart.dataset.figure = "flame";
    this.bar = h("div", { class: "view-bar flame-bar" });
    this.chart.insertBefore(this.bar, this.chart.querySelector(".chart-body"));
  }

  get element() {
    return this.chart;
  }

  reload() {
    return this.chart.reload();
  }

  draw() {
    const { flamegraph } = this;
    const { event, by, focus, libraries } = this.view();
    const total = flamegraph.total_bytes;
    fill(
      this.bar,
      h(
        "span",
        {},
        h("strong", {}, bytes(total)),
        ` alive ${event === null ? `at ${this.peakWords()}` : `after ${eventText(flamegraph.moment)}`}`,
      ),
      h("span", { class: "spring" }),
      choice(
        "Flamegraph by",
        [
          ["stack", "By line"],
          ["module", "By module"],
        ],
        by,
        (value) => this.onView({ flame: value === "stack" ? null : value, focus: null }),
      ),
      by === "stack" &&
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: libraries,
            onchange: (change) => this.onView({ libraries: change.target.checked ? "1" : null, focus: null }),
          }),
          " libraries' frames",
        ),
      flamegraph.focus_names.length > 0 &&
        h(
          "div",
          { class: "crumbs" },
          h(
            "button",
            {
              class: "chip zoom-chip",
              type: "button",
              title: "show everything",
              onclick: () => this.onView({ focus: null }),
            },
            "all  ✕",
          ),
          h("span", { class: "muted" }, `${flamegraph.focus_names.join(" › ")}: ${bytes(flamegraph.focus_bytes)}`),
        ),
      by === "stack" && missingStacksNote(flamegraph, this.onRecord()),
      focus &&
        flamegraph.focus_lost &&
        h("span", { class: "muted" }, "The selection is not alive at this event. Showing everything."),
    );
  }

  sentence() {
    return this.flamegraph
      ? `Flamegraph of ${bytes(this.flamegraph.focus_bytes)} alive: ${this.flamegraph.drawn} boxes.`
      : "Flamegraph";
  }
}
