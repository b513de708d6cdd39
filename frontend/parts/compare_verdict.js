/**
 * Verdict of a comparison in one sentence: the run that needs least, its saving against the baseline, and its cost in
 * time. A saving within the spread of repeats does not count, nor one that
 * is only an upper bound.
 */

import { h } from "vramscope/dom.js";
import { bytes, changeWords, isKnown, percent } from "vramscope/format.js";
import { rowName } from "vramscope/parts/compare_table.js";

const NOTHING = 0.005; // smaller fractions are no saving
const UNFINISHED = new Set(["running", "failed", "lost"]);

/** True if a run did not end as it should: what would have followed may need more. */
const isUnfinished = (row) => row.reasons.some(({ kind }) => UNFINISHED.has(kind));

/**
 * Banner of the verdict. Null if there is nothing to compare. The baseline is the first row. Runs marked ⚠ count only
 * if all are marked, and those that have not finished never.
 */
export function compareVerdict(rows) {
  const [base, ...others] = rows;
  // may be no saving at all
  const isAtMost = (row) => row.saved_bounds?.saved_fraction === "at most" || isUnfinished(row);
  const known = others.filter((row) => isKnown(row.saved_fraction) && !isAtMost(row));
  const comparable = known.filter((row) => row.reasons.length === 0);
  const judged = comparable.length ? comparable : known;
  if (judged.length === 0) return null;
  const best = judged.reduce((a, b) => (b.saved_fraction > a.saved_fraction ? b : a));
  const { low } = best.spreads?.saved_fraction ?? { low: best.saved_fraction };
  const saves = best.saved_fraction >= NOTHING && low > 0;
  const isBound = base.lower_bounds?.includes("peak_allocated_bytes") || isUnfinished(base);
  const isOpen = isBound || others.some((row) => isAtMost(row) && row.saved_fraction >= NOTHING);
  if (!saves && isOpen) return null;
  const chance = best.saved_fraction >= NOTHING && !saves;
  const words = saves
    ? [
        h(
          "strong",
          {},
          `${rowName(best)} needs the least memory: ${isBound ? "at least " : ""}${percent(best.saved_fraction, 0)} less than ${rowName(base)}.`,
        ),
        `${bytes(best.peak_allocated_bytes)} peak allocated instead of ${isBound ? "at least " : ""}${bytes(base.peak_allocated_bytes)}${inTime(best, base)}.`,
      ]
    : [
        h(
          "strong",
          {},
          chance
            ? `No saving against ${rowName(base)} is larger than the differences between repeats.`
            : best.saved_fraction > 0
              ? `None of the others saves ${percent(NOTHING)} or more against ${rowName(base)}.`
              : `None of the others needs less memory than ${rowName(base)}.`,
        ),
        `Its peak allocated is ${bytes(base.peak_allocated_bytes)}.`,
      ];
  const left =
    comparable.length > 0 && known.length > comparable.length
      ? h("span", {}, "Runs marked ⚠ are excluded.")
      : others.some(isUnfinished) && h("span", {}, "Runs that have not finished, or failed, are excluded.");
  return h(
    "div",
    { class: `banner verdict ${saves && comparable.length ? "good" : "quiet"}`, "data-verdict": true },
    words,
    left,
  );
}

function inTime(best, base) {
  if (!isKnown(best.step_time_ratio) || best.emulated || base.emulated) return "";
  const change = best.step_time_ratio - 1;
  if (Math.abs(change) < NOTHING) return ", in the same step time";
  return `, ${changeWords(change, ["faster", "slower"], 0)} per step`;
}
