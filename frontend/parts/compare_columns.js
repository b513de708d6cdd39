/** Columns of the table that compares runs: measured values, and settings in which the runs differ. */

import { h } from "vramscope/dom.js";
import { isKnown } from "vramscope/format.js";
import * as cells from "vramscope/parts/compare_cells.js";
import { settingName, settingText } from "vramscope/parts/setting_differences.js";

const PHONE_PX = 720;
const ON_A_PHONE = ["allocated", "allocated_change", "step_change"];
const MOST_SETTINGS = 2; // shown unless columns are chosen
const SHORT_LETTERS = 28;
/** Settings that are in another column, or that differ in most comparisons without meaning much. */
const UNUSUAL = ["techniques", "capacity_bytes", "host", "command", "git_commit", "agent_version", "driver"];

const some = (field) => (rows) => rows.some((row) => isKnown(row[field]));
const several = (rows) => rows.length > 1;
const someOfSeveral = (field) => (rows) => several(rows) && some(field)(rows);

/** True if a row stands for more than one run. */
export const hasGroups = (rows) => rows.some((row) => (row.runs?.length ?? 1) > 1);

/**
 * `cell(row, base)`: content; `key(row)`: what it sorts by; `needed(rows)`: whether these rows have it; `usual`:
 * shown unless columns are chosen; `text`: not a number.
 */
const MEASURED = [
  {
    id: "technique",
    label: "Technique",
    text: true,
    usual: true,
    needed: (rows) => rows.some((row, at) => at > 0 && row.label !== null),
    cell: cells.techniqueCell,
    key: (row) => row.label?.toLowerCase() ?? null,
    meaning: "techniques that differ from the baseline; hover for all",
  },
  {
    id: "n",
    label: "n",
    usual: true,
    needed: hasGroups,
    cell: (row) => String(row.runs?.length ?? 1),
    key: (row) => row.runs?.length ?? 1,
    meaning:
      "runs of the group. Values are means. Below them: ± half the 95 % interval (Student’s t) of repeats, or lowest to highest",
  },
  {
    id: "allocated",
    label: "Peak allocated",
    usual: true,
    cell: cells.sizeCell("peak_allocated_bytes", "capacity_bytes"),
    key: (row) => row.peak_allocated_bytes,
    meaning: "highest known peak of the allocator’s counter; ≥: lower bound; bar: share of the device",
  },
  {
    id: "allocated_change",
    label: "Change",
    of: "Peak allocated",
    usual: true,
    needed: several,
    cell: cells.savingCell("saved_fraction"),
    key: (row) => negative(row.saved_fraction),
    meaning: "peak allocated against the baseline",
  },
  {
    id: "reserved",
    label: "Peak reserved",
    usual: true,
    cell: cells.sizeCell("peak_reserved_bytes"),
    key: (row) => row.peak_reserved_bytes,
    meaning: "peak memory that PyTorch took from the device",
  },
  {
    id: "reserved_change",
    label: "Change",
    of: "Peak reserved",
    needed: several,
    cell: cells.savingCell("reserved_saved_fraction"),
    key: (row) => negative(row.reserved_saved_fraction),
    meaning: "peak reserved against the baseline",
  },
  {
    id: "device_peak",
    label: "Peak on device",
    needed: some("peak_device_bytes"),
    cell: cells.deviceCell,
    key: (row) => row.peak_device_bytes,
    meaning: "highest sample of the driver, with context and libraries, as in nvidia-smi; ≥: it may be higher between two samples",
  },
  {
    id: "device_change",
    label: "Change",
    of: "Peak on device",
    needed: someOfSeveral("peak_device_bytes"),
    cell: cells.savingCell("device_saved_fraction"),
    key: (row) => negative(row.device_saved_fraction),
    meaning: "highest sample against that of the baseline",
  },
  {
    id: "step_time",
    label: "Step time",
    usual: true,
    cell: cells.secondsCell("step_seconds_median"),
    key: (row) => row.step_seconds_median,
    meaning: "median",
  },
  {
    id: "step_change",
    label: "Change",
    of: "Step time",
    usual: true,
    needed: several,
    cell: cells.timeRatioCell("step_time_ratio"),
    key: (row) => row.step_time_ratio,
    meaning: "step time against the baseline",
  },
  {
    id: "wall_time",
    label: "Wall time",
    needed: some("wall_seconds"),
    cell: cells.secondsCell("wall_seconds"),
    key: (row) => row.wall_seconds,
    meaning: "from attach to the end, all attempts, without the gaps",
  },
  {
    id: "wall_change",
    label: "Change",
    of: "Wall time",
    needed: someOfSeveral("wall_seconds"),
    cell: cells.timeRatioCell("wall_time_ratio"),
    key: (row) => row.wall_time_ratio,
    meaning: "wall time against the baseline; only for finished runs with equal steps",
  },
  {
    id: "batch",
    label: "Batch",
    needed: some("effective_batch"),
    cell: cells.batchCell,
    key: (row) => row.effective_batch,
    meaning: "effective batch: batch × accumulation × ranks",
  },
  {
    id: "samples",
    label: "Samples/s",
    needed: some("samples_per_second"),
    cell: cells.rateCell,
    key: (row) => row.samples_per_second,
    meaning: "effective batch / median step time",
  },
  {
    id: "never_needed",
    label: "Never needed",
    needed: some("fragmentation_fraction"),
    cell: cells.neverNeededCell,
    key: (row) => row.fragmentation_fraction,
    meaning: "peak reserved minus peak allocated, as a share of peak reserved",
  },
  {
    id: "unusable",
    label: "Unusable",
    needed: some("unusable_bytes"),
    cell: cells.unusableCell,
    key: (row) => row.unusable_bytes,
    meaning:
      "free at the reserved peak, but in pieces or pools that the run’s requests cannot use; needs a recording",
  },
  {
    id: "loss",
    label: "Final loss",
    usual: true,
    needed: (rows) => rows.some((row) => row.loss_source),
    cell: cells.lossCell,
    key: (row) => row.final_loss,
    meaning: "mean of the last tenth of the losses, at most 100",
  },
  {
    id: "leaked",
    label: "Leaked",
    usual: true,
    needed: some("leaks"),
    cell: cells.leakedCell,
    key: (row) => row.leaked_bytes,
    meaning: "bytes retained by leaks, on the worst rank",
  },
  {
    id: "graphs",
    label: "Graphs",
    needed: some("graphs_alive"),
    cell: cells.graphsCell,
    key: (row) => row.graphs_alive,
    meaning: "graphs of earlier steps still alive at the newest step",
  },
  { id: "steps", label: "Steps", cell: cells.countCell("steps"), key: (row) => row.steps },
  { id: "state", label: "State", text: true, usual: true, cell: cells.stateCell, key: (row) => row.state },
];

const negative = (value) => (isKnown(value) ? -value : null);

/** True if the values of a setting differ between runs. */
export const differs = ({ values }) => values.some((value) => JSON.stringify(value) !== JSON.stringify(values[0]));

/**
 * All columns for these rows: first the settings that differ, then the measured values. `settings`: those of the
 * answer, one value for each of `ids`, the runs in their order.
 */
export function columnsFor(rows, settings, ids) {
  const place = new Map(ids.map((run, at) => [run, at]));
  return [
    ...settings.filter(differs).sort(byMeaning).map((setting) => settingColumn(setting, place)),
    ...MEASURED.filter(({ needed }) => !needed || needed(rows)),
  ];
}

/** What the reader set comes before what the run found. */
const byMeaning = (one, other) => meaningOf(one.name) - meaningOf(other.name);
const meaningOf = (name) => (name.startsWith("config.") ? 0 : ["tags", "allocator_settings"].includes(name) ? 1 : 2);

/** Column of a setting. A group of runs with several values shows them all. */
function settingColumn({ name, values }, place) {
  const valuesOf = (row) => [
    ...new Set((row.runs ?? [row]).map(({ run }) => settingText(name, values[place.get(run)]))),
  ];
  const first = (row) => values[place.get((row.runs ?? [row])[0].run)];
  return {
    id: name,
    label: settingName(name),
    text: true,
    isSetting: true,
    valuesOf,
    cell: (row, base) => {
      const own = valuesOf(row).join(", ");
      const same = row !== base && own === valuesOf(base).join(", ");
      return h("span", { class: same ? "muted" : null, title: own }, own);
    },
    key: (row) => (typeof first(row) === "number" ? first(row) : valuesOf(row).join(", ").toLowerCase()),
    meaning: "a setting in which the runs differ",
  };
}

/** Columns to show: the chosen ones (ids, or null), else the usual ones and a few short settings that differ. */
export function shownColumns(columns, rows, chosen) {
  if (chosen) return columns.filter(({ id }) => chosen.includes(id));
  if (innerWidth <= PHONE_PX) return columns.filter(({ id }) => ON_A_PHONE.includes(id));
  const isShort = ({ valuesOf }) =>
    rows.every((row) => {
      const values = valuesOf(row);
      return values.length === 1 && values[0].length <= SHORT_LETTERS;
    });
  const settings = columns
    .filter((column) => column.isSetting && !UNUSUAL.includes(column.id) && isShort(column))
    .slice(0, MOST_SETTINGS);
  return columns.filter((column) => column.usual || settings.includes(column));
}
