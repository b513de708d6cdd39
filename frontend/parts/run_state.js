/** Badge of a run's state: a word, a colour and a shape, so that none of them carries the meaning alone. */

import { h, svg } from "vramscope/dom.js";

const SHAPES = {
  running: () => svg("circle", { cx: 8, cy: 8, r: 5, fill: "currentColor" }),
  finished: () => svg("path", { d: "M3 8.5l3.2 3.2L13 5", fill: "none", stroke: "currentColor", "stroke-width": 2 }),
  failed: () => svg("path", { d: "M4 4l8 8M12 4l-8 8", fill: "none", stroke: "currentColor", "stroke-width": 2.2 }),
  lost: () =>
    svg("circle", {
      cx: 8,
      cy: 8,
      r: 5,
      fill: "none",
      stroke: "currentColor",
      "stroke-width": 2,
      "stroke-dasharray": "2.6 2.6",
    }),
};

const MEANINGS = {
  running: "sending data",
  finished: "ended without an error",
  failed: "ended with an exception",
  lost: "no signal: killed or disconnected",
};

export function stateBadge(state, { badge = false } = {}) {
  const shape = SHAPES[state];
  return h(
    "span",
    { class: `state ${state}${badge ? " badge" : ""}`, title: MEANINGS[state] ?? null },
    shape && svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, shape()),
    state,
  );
}
