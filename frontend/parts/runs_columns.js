/** Columns of the runs list, on the page and in CSV. */

import { h } from "vramscope/dom.js";
import { UNKNOWN, ago, bytes, count, dateTime, isKnown, partOf, percent, seconds } from "vramscope/format.js";
import { peakCell, peakDelta, peakOf, peakRatio } from "vramscope/parts/peak_bound.js";
import { known, meter, sized, sparkline } from "vramscope/parts/ui.js";
import { stateBadge } from "vramscope/parts/run_state.js";
import { noteButton } from "vramscope/parts/note_editor.js";
import { tagsButton } from "vramscope/parts/tags_editor.js";
import { toCsv } from "vramscope/series.js";

/**
 * Columns in their order. `kind`: class of the cells; `width`: track of the grid; `least`: its pixels at least; `key`:
 * what it sorts by (`base`: baseline of the run's project); `cell`: content of a cell; `meaning`: explanation of the
 * head. `view` has the ceiling of the sparklines and the columns that are shown.
 */
export const RUNS_COLUMNS = [
  {
    kind: "state-cell",
    label: "State",
    least: 90,
    key: (row) => row.state,
    cell: (row) => stateBadge(row.state),
  },
  {
    kind: "name",
    label: "Run",
    least: 260,
    width: "minmax(260px, 4fr)",
    key: (row) => row.name.toLowerCase(),
    cell: nameCell,
  },
  {
    kind: "project",
    label: "Project",
    least: 84,
    width: "minmax(84px, 1fr)",
    key: (row) => row.project.toLowerCase(),
    cell: (row) => h("span", { title: row.project }, row.project),
  },
  {
    kind: "tags",
    label: "Tags",
    least: 104,
    width: "minmax(104px, 1.2fr)",
    key: (row) => row.tags.join(" ").toLowerCase() || null,
    cell: (row) => tagsButton(row),
    meaning: "click, or press t, to change them",
  },
  {
    kind: "note-cell",
    label: "Note",
    least: 160,
    width: "minmax(160px, 2fr)",
    key: (row) => row.note.toLowerCase() || null,
    cell: (row) => noteButton(row),
    meaning: "click, or press n, to change it",
  },
  {
    kind: "techniques",
    label: "Techniques",
    least: 160,
    width: "minmax(160px, 2fr)",
    key: (row) => row.techniques?.join(" ") || null,
    cell: (row) => techniquesOf(row) ?? known(UNKNOWN, { short: true }),
    meaning: "memory-saving techniques",
  },
  { kind: "gpu", label: "Device", least: 150, key: (row) => row.device ?? "", cell: deviceCell },
  {
    kind: "number peak",
    label: "Peak allocated",
    least: 136,
    key: (row) => peakOf(row).value,
    cell: (row) => [meter(peakOf(row).value, row.capacity_bytes), h("span", {}, peakCell(row))],
    meaning: "highest known peak of the allocator's counter; ≥: lower bound; bar: share of the device",
  },
  {
    kind: "number delta",
    label: "vs baseline",
    least: 92,
    key: changeOf,
    cell: deltaCell,
    meaning: "peak compared with the baseline of the project",
  },
  {
    kind: "number frag",
    label: "Never needed",
    least: 108,
    key: (row) => row.fragmentation_fraction,
    cell: neverNeededCell,
    meaning: "peak reserved minus peak allocated, as a share of peak reserved",
  },
  {
    kind: "number unusable",
    label: "Unusable",
    least: 88,
    key: (row) => row.unusable_bytes,
    cell: unusableCell,
    meaning:
      "free at the reserved peak, but in pieces or pools that the run’s requests cannot use; needs a recording",
  },
  {
    kind: "number time",
    label: "Step time",
    least: 88,
    key: (row) => row.step_seconds_median,
    cell: (row) => known(seconds(row.step_seconds_median), { short: true }),
    meaning: "median",
  },
  {
    kind: "number steps",
    label: "Steps",
    least: 68,
    key: (row) => row.steps,
    cell: (row) => known(count(row.steps), { short: true }),
  },
  {
    kind: "number ranks",
    label: "Ranks",
    least: 68,
    key: (row) => row.world_size,
    cell: (row) => known(partOf(row.ranks_reporting, row.world_size), { short: true }),
    meaning: "processes of the run, and how many report",
  },
  {
    kind: "number started",
    label: "Started",
    least: 100,
    key: (row) => row.started_seconds,
    cell: (row) =>
      h(
        "time",
        { title: dateTime(row.started_seconds), "data-moment": row.started_seconds },
        ago(row.started_seconds, Date.now() / 1000),
      ),
  },
  {
    kind: "spark",
    label: "Peaks",
    least: 100,
    key: null,
    cell: (row, base, view) => sparkline(row.sparkline, view?.ceiling ?? null),
    meaning: "peak per step over the run",
  },
].map((column) => ({ width: `${column.least}px`, ...column, id: inAddress(column.label) }));

/** Name of a column in the URL: "Peak allocated" is `peak_allocated`. */
function inAddress(label) {
  return label.toLowerCase().replace(/\W+/g, "_").replace(/_$/, "");
}

/** Name of a device without its vendor. An emulated device is marked. */
function deviceCell(row) {
  if (!row.device) return known("unknown", { short: true });
  const [, name, emulated] = row.device.match(/^(?:NVIDIA\s+)?(?:GeForce\s+)?(.*?)(\s\(emulated\))?$/s);
  return [h("span", { title: row.device }, name), emulated && h("span", { class: "chip" }, "emulated")];
}

/** Name, chips, and in muted text the error or the techniques: one line, cut off at its end. */
function nameCell(row, base, view) {
  const run = `/runs/${encodeURIComponent(row.run_id)}`;
  const ranOut = row.out_of_memory > 0 || row.oom_records > 0;
  const isChip = ranOut && /OutOfMemory/.test(row.error_type); // the chip says it
  const error = row.error_type && !isChip && `${row.error_type}${row.error_line ? `: ${row.error_line}` : ""}`;
  return h(
    "div",
    { class: "name-line" },
    h("a", { href: run, title: row.name }, row.name),
    row.baseline && h("span", { class: "chip baseline", title: "baseline for the deltas of this project" }, "baseline"),
    ranOut &&
      h("a", { class: "chip leak", href: `${run}/oom`, title: "out of memory: cause and remedies" }, "OOM"),
    row.leaks > 0 &&
      h(
        "a",
        {
          class: "chip leak",
          href: `${run}/leaks`,
          title: leaksInWords(row),
        },
        "leak ",
        bytes(row.leaked_bytes),
      ),
    error && h("span", { class: "error", title: error }, error),
    !view?.shown.has("note") && row.note && h("span", { class: "noted", title: row.note }, row.note),
    !view?.shown.has("techniques") && techniquesOf(row),
  );
}

const leaksInWords = ({ leaks, worst_leak, leaked_bytes }) =>
  `${leaks === 1 ? "1 leak" : `${leaks} leaks`} (${worst_leak}), retaining ${bytes(leaked_bytes)}`;

/** Techniques of a run in one line. Null if none is known. */
function techniquesOf(row) {
  if (!(row.techniques?.length > 0)) return null;
  const title = `trained with ${row.techniques.join(", ")}`;
  return h("span", { class: "trained", title }, row.techniques.join(" · "));
}

/** Peak of a run as a share of its baseline's. Null if it is unknown. */
function changeOf(row, base) {
  return peakRatio(row, base)?.ratio ?? null;
}

function neverNeededCell(row) {
  return known(percent(row.fragmentation_fraction), { short: true });
}

/** Unusable bytes, with a link to the recordings if there are any. */
function unusableCell(row) {
  const size = sized(row.unusable_bytes, { short: true });
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
  return peakDelta(row, base);
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
  "sampled_allocated_bytes",
  "sampled_reserved_bytes",
  "lower_bound_steps",
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
  "note",
];

/** Rows as CSV with a head. */
export const runsCsv = (rows) => toCsv([FIELDS, ...rows.map((row) => FIELDS.map((field) => row[field]))]);
