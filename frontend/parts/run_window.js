/** The window of a run's charts, which the URL holds: its range and its axis. */

import { setQuery } from "vramscope/store.js";

/** Shows a range of the axis. Null: all of it. */
export function zoomTo(view, range) {
  if (!range) {
    setQuery({ from: null, to: null });
    return;
  }
  const digits = view.x === "time" ? 3 : 1;
  setQuery({ from: Number(Math.max(0, range.from).toFixed(digits)), to: Number(range.to.toFixed(digits)) });
}

/** Moves the window by one step (on the step axis), else by a tenth of its width. */
export function shiftWindow({ x, from, to }, direction) {
  if (from === null) return;
  const by = direction * (x === "step" ? 1 : (to - from) / 10);
  setQuery({ from: Number((from + by).toFixed(3)), to: Number((to + by).toFixed(3)) });
}

/** Chooses the axis: time, step or clock. A window stays where both axes have the same unit. */
export function setAxis(view, x) {
  const sameUnit = (x === "step") === (view.x === "step");
  setQuery({ x: x === "time" ? null : x, ...(sameUnit ? {} : { from: null, to: null, last: null }) });
}
