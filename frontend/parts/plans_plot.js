/** Predicted peaks of training plans against their work, with the memory of the card. The table beside it has the numbers. */

import { h } from "vramscope/dom.js";
import { bytes, isKnown } from "vramscope/format.js";
import { bestPlans } from "vramscope/parts/plan_work.js";

const CARD_IN_SIGHT = 2.5; // the card's line is drawn where the card is at most this many times as large as the highest peak
const HEADROOM = 1.15;

/**
 * `points`: `{name, work, peak, recorded}`, work relative to the recorded step; `capacity`: bytes of the card, or null.
 * Null with fewer than two plans besides the recorded one: then a plot has nothing to show.
 */
export function plansPlot(points, capacity) {
  const known = points.filter(({ peak }) => isKnown(peak));
  if (known.length < 3) return null;
  const highest = Math.max(...known.map(({ peak }) => peak));
  const hasLine = isKnown(capacity) && capacity <= CARD_IN_SIGHT * highest;
  const top = HEADROOM * Math.max(highest, hasLine ? capacity : 0);
  const works = [...new Set(known.map(({ work }) => work))].sort((a, b) => a - b);
  const [least, most] = [works[0], works.at(-1)];
  // a third of the width is left for the names of the last column
  const left = (work) => `${4 + (most > least ? ((work - least) / (most - least)) * 56 : 0)}%`;
  const bottom = (peak) => `${(peak / top) * 100}%`;
  const best = new Set(bestPlans(known));
  const column = (work) => (work === most && most > least ? "last" : works.length > 2 ? "narrow" : "first");
  const words = `${known.length} plans by predicted peak and work. On the front: ${[...best].map(({ name, peak }) => `${name} ${bytes(peak)}`).join(", ")}.`;
  return h(
    "figure",
    { class: "plans-plot" },
    h("figcaption", { class: "muted" }, "Peak allocated against work; named: no other plan has less of both"),
    h(
      "div",
      { class: "plans-field", role: "img", "aria-label": words },
      works.map((work) =>
        h(
          "span",
          { class: "plans-work", style: { left: left(work) } },
          h("span", { class: "plans-label" }, work === 1 ? "work as recorded" : `${work.toFixed(2)} ×`),
        ),
      ),
      hasLine &&
        h(
          "span",
          { class: "plans-card", style: { bottom: bottom(capacity) } },
          h("span", { class: "plans-label" }, `card ${bytes(capacity)}`),
        ),
      known.map((point) =>
        h(
          "span",
          {
            class: `plans-point ${column(point.work)}${point.recorded ? " recorded" : ""}${best.has(point) ? " best" : ""}`,
            style: { left: left(point.work), bottom: bottom(point.peak) },
            title: `${point.name}: ${bytes(point.peak)}`,
          },
          (best.has(point) || point.recorded) && h("span", { class: "plans-label" }, `${point.name}, ${bytes(point.peak)}`),
        ),
      ),
    ),
    isKnown(capacity) &&
      !hasLine &&
      h("p", { class: "muted" }, `The card has ${bytes(capacity)}, far above each of these.`),
  );
}
