/** Peaks of a run, which may be lower bounds: a rank has samples alone, or other code reset PyTorch's counters. */

import { h } from "vramscope/dom.js";
import { UNKNOWN, bytes, exactBytes, isKnown, signedPercent } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";

/** Peak of a run in the list or in full: `{value, isBound}`. `kind`: "allocated" or "reserved". */
export function peakOf(run, kind = "allocated") {
  const measured = run[`peak_${kind}_bytes`] ?? null;
  const sampled = run[`sampled_${kind}_bytes`];
  if (isKnown(sampled)) return { value: Math.max(sampled, measured ?? 0), isBound: true };
  return { value: measured, isBound: isKnown(measured) && run.lower_bound_steps > 0 };
}

/** Text of a size; "≥" marks a lower bound. */
export const boundText = (text, isBound) => (isBound ? `≥ ${text}` : text);

/** The peak as text. */
export function peakText(run, kind = "allocated") {
  const { value, isBound } = peakOf(run, kind);
  return boundText(bytes(value), isBound);
}

/** Cell of a size, with its exact bytes on hover. */
export function boundCell(value, isBound) {
  if (!isKnown(value)) return known(UNKNOWN, { short: true });
  const title = `${isBound ? "lower bound: " : ""}${exactBytes(value)}`;
  return h("span", { title, "data-bound": isBound || null }, boundText(bytes(value), isBound));
}

/** Cell of the allocated peak of a run. */
export function peakCell(run) {
  const { value, isBound } = peakOf(run);
  return boundCell(value, isBound);
}

/** Share of the peak of `base`: `{ratio, mark}`. The mark is "≥ ", "≤ " or "". Null if it is unknown. */
export function peakRatio(run, base) {
  if (!base) return null;
  const [own, other] = [peakOf(run), peakOf(base)];
  if (!isKnown(own.value) || !(other.value > 0) || (own.isBound && other.isBound)) return null;
  return { ratio: own.value / other.value, mark: own.isBound ? "≥ " : other.isBound ? "≤ " : "" };
}

/** Difference of the peaks as a signed percentage, coloured where its direction is known. */
export function peakDelta(run, base) {
  const found = peakRatio(run, base);
  if (found === null) return known(UNKNOWN, { short: true });
  const change = found.ratio - 1;
  const isSmall = Math.abs(change) < 0.005;
  const isOpen = (found.mark === "≥ " && change < 0) || (found.mark === "≤ " && change > 0);
  return h("span", { class: isSmall || isOpen ? "" : change < 0 ? "less" : "more" }, found.mark, signedPercent(change));
}
