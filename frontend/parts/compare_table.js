/**
 * Table of runs against the baseline: techniques, three peaks and their savings, time, batch. Repeats of one
 * configuration may share a row, with means and their spread.
 */

import { h } from "vramscope/dom.js";
import { bytes, count, graphs, isKnown, number, percent, ratio, seconds, signedPercent } from "vramscope/format.js";
import { known, meter } from "vramscope/parts/ui.js";
import { stateBadge } from "vramscope/parts/run_state.js";

const MIB = 2 ** 20;
const SHORT = { short: true };
const none = () => h("span", { class: "muted" }, "—");
const some = (field) => (rows) => rows.some((row) => isKnown(row[field]));
const several = (rows) => rows.length > 1;
const someAgainst = (field) => (rows) => several(rows) && some(field)(rows);
const place = (row, page) => `/runs/${encodeURIComponent(row.run)}${page}`;

/**
 * Head, whether it is a number, whether these rows need the column (undefined: always), content of a cell, explanation.
 */
const COLUMNS = [
  ["Technique", false, undefined, techniqueCell, "techniques that differ from the baseline; hover for all"],
  [
    "n",
    true,
    hasRepeats,
    (row) => count(row.runs.length),
    "Repeats of one configuration (only the seed differs). Values are means, with ± half the 95 % interval (Student’s t), or the range for fewer than three.",
  ],
  [
    "Allocated",
    true,
    undefined,
    (row) => [
      mib(row.peak_allocated_bytes),
      meter(row.peak_allocated_bytes, row.capacity_bytes),
      spreadText(row, "peak_allocated_bytes", inMib),
    ],
    "exact peak of the allocator’s counter, in MiB",
  ],
  ["change", true, several, changeCell("saved_fraction"), "of peak allocated, as a share of the baseline"],
  [
    "Reserved",
    true,
    undefined,
    (row) => [mib(row.peak_reserved_bytes), spreadText(row, "peak_reserved_bytes", inMib)],
    "peak memory that PyTorch took from the device, in MiB",
  ],
  ["change", true, several, changeCell("reserved_saved_fraction"), "of peak reserved, as a share of the baseline"],
  [
    "Device",
    true,
    some("peak_device_bytes"),
    deviceCell,
    "highest value of the driver, in MiB, with context and libraries, as in nvidia-smi",
  ],
  ["change", true, someAgainst("peak_device_bytes"), changeCell("device_saved_fraction"), "of the device’s peak, as a share of the baseline"],
  [
    "Wall time",
    true,
    some("wall_seconds"),
    (row) => timeCell(row, [known(seconds(row.wall_seconds), SHORT), spreadText(row, "wall_seconds", seconds)]),
    "from attach to the end, all attempts, without the gaps",
  ],
  [
    "ratio",
    true,
    someAgainst("wall_seconds"),
    ratioCell("wall_time_ratio"),
    "ratio of wall times; only for finished runs with equal steps",
  ],
  [
    "Step time",
    true,
    undefined,
    (row) =>
      timeCell(row, [known(seconds(row.step_seconds_median), SHORT), spreadText(row, "step_seconds_median", seconds)]),
    "median",
  ],
  ["ratio", true, several, ratioCell("step_time_ratio"), "ratio of step times"],
  ["Batch", true, some("effective_batch"), batchCell, "effective batch: batch × accumulation × ranks"],
  [
    "Samples/s",
    true,
    some("samples_per_second"),
    (row) =>
      timeCell(row, [
        known(isKnown(row.samples_per_second) ? rate(row.samples_per_second) : "unknown", SHORT),
        spreadText(row, "samples_per_second", rate),
      ]),
    "effective batch / median step time",
  ],
  [
    "Never needed",
    true,
    undefined,
    (row) => [known(percent(row.fragmentation_fraction), SHORT), spreadText(row, "fragmentation_fraction", percent)],
    "peak reserved minus peak allocated, as a share of peak reserved",
  ],
  [
    "Unusable",
    true,
    undefined,
    (row) => h("a", { class: "quiet-link", href: place(row, "/fragmentation") }, mib(row.unusable_bytes)),
    "free at the reserved peak, in MiB, but in pieces or pools that the run’s requests cannot use; needs a recording",
  ],
  [
    "Final loss",
    true,
    (rows) => rows.some((row) => row.loss_source),
    lossCell,
    "mean of the last tenth of the losses, at most 100",
  ],
  ["Leaked", true, some("leaks"), leakedCell, "bytes retained by leaks, on the worst rank"],
  [
    "Graphs",
    true,
    some("graphs_alive"),
    (row) => known(graphs(row.graphs_alive), SHORT),
    "graphs of earlier steps still alive at the newest step",
  ],
  ["Steps", true, undefined, (row) => known(count(row.steps), SHORT)],
  ["State", false, undefined, (row) => stateBadge(row.state)],
];

/** True if a row stands for more than one run. */
export function hasRepeats(rows) {
  return rows.some((row) => (row.runs?.length ?? 1) > 1);
}

/** Table of the rows, the baseline first. `colourOf(run)`: colour of a run in the charts. */
export function compareTable(rows, colourOf) {
  const columns = COLUMNS.filter(([, , needed]) => !needed || needed(rows));
  const marked = (position) => position === 0 && several(rows);
  const line = (row, position) =>
    h(
      "tr",
      { class: marked(position) ? "baseline" : null, "data-run": row.run },
      h(
        "th",
        { class: "run", scope: "row" },
        (row.runs ?? [row]).map((one, i) =>
          h(
            "span",
            { class: "name-line" },
            h("span", { class: "swatch marker", style: { "--swatch": colourOf(one.run) } }),
            h("a", { href: place(one, "") }, one.name),
            i === 0 && marked(position) && h("span", { class: "chip baseline" }, "baseline"),
          ),
        ),
        row.reasons.length > 0 &&
          h(
            "span",
            { class: "reasons", title: reasonsOf(row) },
            h("span", { "aria-label": "not fully comparable" }, "⚠ "),
            reasonsOf(row),
          ),
      ),
      columns.map(([, number, , content]) => h("td", { class: number ? "number" : null }, content(row, rows[0]))),
    );
  const head = columns.map(([name, number, , , meaning]) =>
    h("th", { class: number ? "number" : null, scope: "col", title: meaning ?? null }, name),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0" },
    h(
      "table",
      { class: "plain compare-table" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Run"), head)),
      h("tbody", {}, rows.map(line)),
    ),
  );
}

const reasonsOf = (row) => row.reasons.map((reason) => reason.text).join("; ");

/** Summary of what is not comparable, in one sentence. Null if all rows are comparable. */
export function comparability(rows) {
  const marked = rows.filter((row) => row.reasons.length > 0);
  if (marked.length === 0) return null;
  if (rows.length === 1) return `${rows[0].name}: ${reasonsOf(rows[0])}.`;
  return `${marked.length === rows.length ? "All" : count(marked.length)} of ${count(rows.length)} runs ${marked.length === 1 ? "is" : "are"} marked ⚠ in the table, with the reasons.`;
}

function mib(value) {
  return isKnown(value) ? h("span", { title: bytes(value) }, inMib(value)) : known("unknown", SHORT);
}

function inMib(value) {
  const size = value / MIB;
  return size >= 10 || size === 0 ? count(size) : size.toPrecision(2);
}

/** Spread of repeats, below their mean: "± 12" if an interval is known, else the range. Null for a single run. */
function spreadText(row, field, words) {
  const spread = row.spreads?.[field];
  if (!spread) return null;
  const { n, low, high, kind } = spread;
  const interval = kind === "t95" || low === high;
  const ends = [low, high].sort((a, b) => Math.abs(a) - Math.abs(b)).map((value) => words(value));
  return h(
    "span",
    {
      class: "below",
      "data-spread": kind,
      title: interval ? `half the 95 % interval of the mean of ${count(n)}` : `range of ${count(n)}`,
    },
    interval ? `± ${words((high - low) / 2).replace(/^[+−×±]/, "")}` : ends.join(" to "),
  );
}

/** True if the spread of repeats contains `value`. */
function isWithinSpread(row, field, value) {
  const spread = row.spreads?.[field];
  return Boolean(spread) && spread.low <= value && value <= spread.high;
}

const rate = (value) => (value >= 100 ? count(value) : String(Number(value.toPrecision(3))));

function techniqueCell(row) {
  const left = row.leave_one_out;
  const all = row.techniques === null ? "not reported by its agent" : row.techniques.join(", ") || "none seen";
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

function changeCell(field) {
  return (row, base) => {
    if (row === base) return none();
    if (!isKnown(row[field])) return known("unknown", SHORT);
    const change = -row[field];
    const same = Math.abs(change) < 0.005 || isWithinSpread(row, field, 0);
    return [
      h("span", { class: same ? "" : change < 0 ? "less" : "more" }, signedPercent(change)),
      spreadText(row, field, (value) => signedPercent(-value)),
    ];
  };
}

function ratioCell(field) {
  return (row, base) => {
    if (row === base) return none();
    const value = row[field];
    if (!isKnown(value)) return known("unknown", SHORT);
    const nothing = row.emulated || base.emulated;
    const same = nothing || isWithinSpread(row, field, 1);
    return timeCell({ emulated: nothing }, [
      h("span", { class: same ? null : value > 1.005 ? "more" : value < 0.995 ? "less" : "" }, ratio(value)),
      spreadText(row, field, ratio),
    ]);
  };
}

/** A time, or a value that depends on it. Marked as not meaningful on an emulated GPU. */
function timeCell({ emulated }, content) {
  return emulated
    ? h(
        "span",
        { class: "muted", "data-emulated": true, title: "Emulated GPU: memory is exact, timing is not meaningful" },
        h("i", {}, content),
      )
    : content;
}

function deviceCell(row) {
  const isWholeDevice = row.peak_device_of === "device";
  return h(
    "span",
    { title: isWholeDevice ? "whole device; the share of this process is unknown" : null },
    mib(row.peak_device_bytes),
    isWholeDevice && h("span", { class: "muted" }, " all"),
    spreadText(row, "peak_device_bytes", inMib),
  );
}

function batchCell(row) {
  if (!isKnown(row.effective_batch)) return known("unknown", SHORT);
  const parts =
    isKnown(row.batch) && isKnown(row.accumulation)
      ? `batch ${count(row.batch)}, accumulation ${count(row.accumulation)}, ${number(row.effective_batch / row.batch / row.accumulation)} ranks`
      : null;
  return h("span", { title: parts }, count(row.effective_batch));
}

/** Final loss, with the first loss on hover. A loss that is not a number is marked. */
function lossCell(row) {
  if (row.loss_words) return h("span", { class: "more lost", title: row.loss_source }, row.loss_words);
  if (!isKnown(row.final_loss)) return known("unknown", SHORT);
  const first = isKnown(row.first_loss) ? `, first ${number(row.first_loss)}` : "";
  return h(
    "span",
    { title: `mean of ${row.loss_of}${first}; ${row.loss_source}` },
    lossWords(row.final_loss),
    spreadText(row, "final_loss", lossWords),
  );
}

const lossWords = (value) => String(Number(value.toPrecision(4)));

/** Leaked bytes. No leak is "none". No scan is "unknown". */
function leakedCell(row) {
  if (!isKnown(row.leaks)) return known("unknown", SHORT);
  if (row.leaks === 0) return h("span", { class: "less" }, "none");
  return h(
    "a",
    {
      class: "more",
      href: place(row, "/leaks"),
      title: `${row.leaks === 1 ? "1 leak" : `${row.leaks} leaks`}: ${row.worst_leak}`,
    },
    bytes(row.leaked_bytes),
  );
}
