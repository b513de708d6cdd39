/** Cells of the table that compares runs: sizes, changes in words, spreads, and marks for what is not comparable. */

import { h } from "vramscope/dom.js";
import {
  bytes,
  changeWords,
  count,
  graphs,
  isKnown,
  number,
  percent,
  ratio,
  seconds,
} from "vramscope/format.js";
import { boundCell } from "vramscope/parts/peak_bound.js";
import { stateBadge } from "vramscope/parts/run_state.js";
import { known, meter, sized } from "vramscope/parts/ui.js";

const SHORT = { short: true };
const NOTHING = 0.005; // smaller changes have no colour
const none = () => h("span", { class: "muted" }, "—");
const unknown = () => known("unknown", SHORT);

/** Address of a page of a run. */
export const pageOf = (run, page = "") => `/runs/${encodeURIComponent(run)}${page}`;

/** Spread of a group, below its mean: "± 12 MiB" for an interval, else the range. Null for a single run. */
function spreadText(row, field, words, between = null) {
  const spread = row.spreads?.[field];
  if (!spread) return null;
  const { n, low, high, kind } = spread;
  const interval = kind === "t95" || low === high;
  return h(
    "span",
    {
      class: "below",
      "data-spread": kind,
      title: interval ? `half the 95 % interval of the mean of ${count(n)}` : `lowest to highest of ${count(n)}`,
    },
    interval ? `± ${words((high - low) / 2)}` : between ? between(low, high) : `${words(low)} to ${words(high)}`,
  );
}

/** True if the spread of a group contains `value`. */
function isWithinSpread(row, field, value) {
  const spread = row.spreads?.[field];
  return Boolean(spread) && spread.low <= value && value <= spread.high;
}

const size = (value) => sized(value, SHORT);

/** Cell of a size with its spread. `ceiling`: field of the size that a bar under it is a share of. */
export function sizeCell(field, ceiling = null) {
  return (row) => [
    boundCell(row[field], row.lower_bounds.includes(field)),
    ceiling && meter(row[field], row[ceiling]),
    spreadText(row, field, bytes),
  ];
}

/** Cell of a saving: "45.1 % smaller", or "3.0 % larger". */
export function savingCell(field) {
  return (row, base) => {
    if (row === base) return none();
    if (!isKnown(row[field])) return unknown();
    const bound = row.saved_bounds?.[field];
    const isOpen = (bound === "at most" && row[field] > 0) || (bound === "at least" && row[field] < 0);
    const same = isOpen || Math.abs(row[field]) < NOTHING || isWithinSpread(row, field, 0);
    const spread = spreadOfChange(row, field, (value) => -value);
    const isLarger = row[field] < 0;
    const words = bound && `${(bound === "at most") === isLarger ? "at least" : "at most"} `;
    return [words, changed(-row[field], same, ["smaller", "larger"], spread)];
  };
}

/** Cell of a ratio of times: "31 % slower", or "25 % faster". The ratio itself is on hover. */
export function timeRatioCell(field, words = ["faster", "slower"]) {
  return (row, base) => {
    if (row === base) return none();
    if (!isKnown(row[field])) return unknown();
    const emulated = row.emulated || base.emulated;
    const same = emulated || Math.abs(row[field] - 1) < NOTHING || isWithinSpread(row, field, 1);
    const spread = spreadOfChange(row, field, (value) => value - 1, words);
    return timed({ emulated }, changed(row[field] - 1, same, words, spread, ratio(row[field])));
  };
}

function changed(change, same, words, spread, title = null) {
  const [, amount, direction] = /^(.*?)( [a-z]+)?$/.exec(changeWords(change, words));
  const text = [h("span", { class: "nowrap" }, amount), direction];
  return [h("span", { class: same ? null : change < 0 ? "less" : "more", title }, text), spread];
}

function spreadOfChange(row, field, changeOf, words) {
  const between = (low, high) => {
    const ends = [changeOf(low), changeOf(high)].sort((a, b) => Math.abs(a) - Math.abs(b));
    const [first, last] = ends.map((change) => changeWords(change, words));
    return ends[0] * ends[1] > 0 ? `${percent(Math.abs(ends[0]))} to ${last}` : `${first} to ${last}`;
  };
  return spreadText(row, field, (value) => percent(Math.abs(value)), between);
}

/** Cell of a duration. */
export function secondsCell(field) {
  return (row) => timed(row, [known(seconds(row[field]), SHORT), spreadText(row, field, seconds)]);
}

/** A time, or a value that depends on it. Marked as not meaningful on an emulated GPU. */
function timed({ emulated }, content) {
  if (!emulated) return content;
  const title = "Emulated GPU: memory is exact, timing is not meaningful";
  return h("span", { class: "muted", "data-emulated": true, title }, h("i", {}, content));
}

const rate = (value) => (value >= 100 ? count(value) : String(Number(value.toPrecision(3))));

/** Cell of the throughput. */
export const rateCell = (row) =>
  timed(row, [
    isKnown(row.samples_per_second) ? rate(row.samples_per_second) : unknown(),
    spreadText(row, "samples_per_second", rate),
  ]);

/** Cell of the device's peak: of the process, or of the whole device. */
export function deviceCell(row) {
  const isWholeDevice = row.peak_device_of === "device";
  return h(
    "span",
    { title: isWholeDevice ? "whole device; the share of this process is unknown" : null },
    boundCell(row.peak_device_bytes, row.lower_bounds.includes("peak_device_bytes")),
    isWholeDevice && h("span", { class: "muted" }, " all"),
    spreadText(row, "peak_device_bytes", bytes),
  );
}

/** Cell of the effective batch. */
export function batchCell(row) {
  if (!isKnown(row.effective_batch)) return unknown();
  const parts =
    isKnown(row.batch) && isKnown(row.accumulation)
      ? `batch ${count(row.batch)}, accumulation ${count(row.accumulation)}, ${number(row.effective_batch / row.batch / row.accumulation)} ranks`
      : null;
  return h("span", { title: parts }, count(row.effective_batch));
}

/** Cell of the techniques in which a row differs from the baseline. */
export function techniqueCell(row, base) {
  const left = row.leave_one_out;
  if (row !== base && row.differing?.length === 0 && !left) return h("span", { class: "muted" }, "same");
  const all = row.techniques === null ? "not reported, or mixed" : row.techniques.join(", ") || "none seen";
  return [
    h("span", { title: all }, row.label === null ? none() : row.label),
    left &&
      isKnown(left.allocated_bytes) &&
      h(
        "span",
        { class: "below", title: `against ${row.label.replace("all but", "all with")}` },
        `${left.technique}: ${left.allocated_bytes < 0 ? "costs" : "saves"} ${bytes(Math.abs(left.allocated_bytes))} here`,
      ),
  ];
}

const lossWords = (value) => String(Number(value.toPrecision(4)));

/** Cell of the final loss, with the first loss on hover. A loss that is not a number is marked. */
export function lossCell(row) {
  if (row.loss_words) return h("span", { class: "more lost", title: row.loss_source }, row.loss_words);
  if (!isKnown(row.final_loss)) return unknown();
  const first = isKnown(row.first_loss) ? `, first ${number(row.first_loss)}` : "";
  const source = row.loss_source ? `; ${row.loss_source}` : "";
  const title = `mean of ${isKnown(row.loss_of) ? row.loss_of : "the last losses of each run"}${first}${source}`;
  return h("span", { title }, lossWords(row.final_loss), spreadText(row, "final_loss", lossWords));
}

/** Cell of the leaked bytes. No leak is "none". No scan is "unknown". */
export function leakedCell(row) {
  if (!isKnown(row.leaks)) return unknown();
  if (row.leaks === 0) return h("span", { class: "less" }, "none");
  const title = `${row.leaks === 1 ? "1 leak" : `${row.leaks} leaks`}: ${row.worst_leak}`;
  return h("a", { class: "more", href: pageOf(row.run, "/leaks"), title }, bytes(row.leaked_bytes));
}

/** Cell of the share of reserved memory that no step allocated. */
export const neverNeededCell = (row) => [
  known(percent(row.fragmentation_fraction), SHORT),
  spreadText(row, "fragmentation_fraction", percent),
];

/** Cell of the unusable bytes, with a link to the recordings. */
export const unusableCell = (row) =>
  isKnown(row.unusable_bytes)
    ? h("a", { class: "quiet-link", href: pageOf(row.run, "/fragmentation") }, size(row.unusable_bytes))
    : unknown();

/** Cell of the autograd graphs that are alive. */
export const graphsCell = (row) => known(graphs(row.graphs_alive), SHORT);

/** Cell of an integer. */
export const countCell = (field) => (row) => known(count(row[field]), SHORT);

/** Cell of the state. */
export const stateCell = (row) => (row.state === "mixed" ? h("span", { class: "muted" }, "mixed") : stateBadge(row.state));
