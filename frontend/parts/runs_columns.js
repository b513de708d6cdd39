/** Columns of the runs list, on the page and in CSV. */

import { h } from "vramscope/dom.js";
import { ago, bytes, count, dateTime, partOf, percent, seconds } from "vramscope/format.js";
import { delta, known, meter, sparkline } from "vramscope/parts/ui.js";
import { stateBadge } from "vramscope/parts/run_state.js";
import { toCsv } from "vramscope/series.js";

/**
 * Class, head, sort key (null: cannot be sorted), content of a cell, explanation. `base`: baseline of the run's
 * project.
 */
export const RUNS_COLUMNS = [
  ["state-cell", "State", null, (row) => stateBadge(row.state)],
  ["name", "Run", (row) => row.name.toLowerCase(), nameCell],
  ["gpu", "Device", (row) => row.device ?? "", deviceCell],
  [
    "number peak",
    "Peak allocated",
    (row) => row.peak_allocated_bytes,
    (row) => [
      known(bytes(row.peak_allocated_bytes), { short: true }),
      meter(row.peak_allocated_bytes, row.capacity_bytes),
    ],
    "exact peak of the allocator's counter; bar: share of the device",
  ],
  ["number delta", "vs baseline", null, deltaCell, "peak compared with the baseline of the project"],
  [
    "number frag",
    "Never needed",
    (row) => row.fragmentation_fraction,
    neverNeededCell,
    "peak reserved minus peak allocated, as a share of peak reserved",
  ],
  [
    "number unusable",
    "Unusable",
    (row) => row.unusable_bytes,
    unusableCell,
    "free at the reserved peak, but in pieces or pools that the run’s requests cannot use; needs a recording",
  ],
  [
    "number time",
    "Step time",
    (row) => row.step_seconds_median,
    (row) => known(seconds(row.step_seconds_median), { short: true }),
    "median",
  ],
  ["number steps", "Steps", (row) => row.steps, (row) => known(count(row.steps), { short: true })],
  [
    "number ranks",
    "Ranks",
    (row) => row.world_size,
    (row) => known(partOf(row.ranks_reporting, row.world_size), { short: true }),
    "processes of the run, and how many report",
  ],
  [
    "number started",
    "Started",
    (row) => row.started_seconds,
    (row) =>
      h(
        "time",
        { title: dateTime(row.started_seconds), "data-moment": row.started_seconds },
        ago(row.started_seconds, Date.now() / 1000),
      ),
  ],
  ["spark", "Peaks", null, (row) => sparkline(row.sparkline), "peak per step over the run"],
];

/** Name of a device without its vendor. An emulated device is marked. */
function deviceCell(row) {
  if (!row.device) return known("unknown", { short: true });
  const [, name, emulated] = row.device.match(/^(?:NVIDIA\s+)?(?:GeForce\s+)?(.*?)(\s\(emulated\))?$/s);
  return [h("span", { title: row.device }, name), emulated && h("div", { class: "below" }, "emulated")];
}

function nameCell(row) {
  return [
    h(
      "div",
      { class: "name-line" },
      h("a", { href: `/runs/${encodeURIComponent(row.run_id)}`, title: row.name }, row.name),
      row.baseline &&
        h("span", { class: "chip baseline", title: "baseline for the deltas of this project" }, "baseline"),
      (row.out_of_memory > 0 || row.oom_records > 0) &&
        h(
          "a",
          {
            class: "chip leak",
            href: `/runs/${encodeURIComponent(row.run_id)}/oom`,
            title: "out of memory: cause and remedies",
          },
          "OOM",
        ),
      row.leaks > 0 &&
        h(
          "a",
          {
            class: "chip leak",
            href: `/runs/${encodeURIComponent(row.run_id)}/leaks`,
            title: `${row.leaks === 1 ? "1 leak" : `${row.leaks} leaks`} (${row.worst_leak}), retaining ${bytes(row.leaked_bytes)}`,
          },
          "leak ",
          bytes(row.leaked_bytes),
        ),
    ),
    h(
      "div",
      { class: "below" },
      [row.project, ...row.tags].map((word, i) => [i > 0 && " · ", word]),
    ),
    row.techniques?.length > 0 &&
      h("div", { class: "trained", title: `trained with ${row.techniques.join(", ")}` }, row.techniques.join(" · ")),
    row.error_type &&
      h(
        "div",
        { class: "below error", title: `${row.error_type}: ${row.error_line ?? ""}` },
        row.error_type,
        row.error_line ? `: ${row.error_line}` : "",
      ),
  ];
}

function neverNeededCell(row) {
  return known(percent(row.fragmentation_fraction), { short: true });
}

/** Unusable bytes, with a link to the recordings if there are any. */
function unusableCell(row) {
  const size = known(bytes(row.unusable_bytes), { short: true });
  if (!(row.recordings > 0)) return size;
  return h(
    "a",
    { href: `/runs/${encodeURIComponent(row.run_id)}/fragmentation`, title: `recordings: ${row.recordings}` },
    size,
  );
}

function deltaCell(row, base) {
  if (row.baseline) return h("span", { class: "muted" }, "baseline");
  if (!base) return h("span", { class: "muted none", title: "the project has no baseline" }, "—");
  return delta(row.peak_allocated_bytes, base.peak_allocated_bytes);
}

const FIELDS = [
  "run_id",
  "name",
  "project",
  "state",
  "device",
  "capacity_bytes",
  "world_size",
  "ranks_reporting",
  "steps",
  "started_seconds",
  "ended_seconds",
  "peak_allocated_bytes",
  "peak_reserved_bytes",
  "peak_step",
  "step_seconds_median",
  "fragmentation_fraction",
  "unusable_bytes",
  "leaks",
  "leaked_bytes",
  "worst_leak",
  "graphs_alive",
  "techniques",
  "error_type",
];

/** Rows as CSV with a head. */
export const runsCsv = (rows) => toCsv([FIELDS, ...rows.map((row) => FIELDS.map((field) => row[field]))]);
