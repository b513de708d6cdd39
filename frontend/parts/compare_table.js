/** Runs against the baseline, as a table: in the page, and as rows to take along. */

import { h } from "vramscope/dom.js";
import { bytes, count, isKnown, percent, ratio, seconds, signedPercent } from "vramscope/format.js";
import { delta, known, meter } from "vramscope/parts/pieces.js";
import { stateBadge } from "vramscope/parts/state.js";

const none = () => h("span", { class: "muted" }, "—");
const some = (field) => (rows) => rows.some((row) => isKnown(row[field]));
const several = (rows) => rows.length > 1;

/** Head, whether it is a number, whether these rows need the column (undefined: always), what a cell holds. */
const COLUMNS = [
  ["State", false, undefined, (row) => stateBadge(row.state)],
  ["Techniques", false, (rows) => rows.some((row) => row.techniques?.length), (row) => (row.techniques ?? []).join(", ") || h("span", { class: "muted" }, "none declared")],
  ["Peak allocated", true, undefined, (row) => [known(bytes(row.peak_allocated_bytes)), meter(row.peak_allocated_bytes, row.capacity_bytes)]],
  ["vs baseline", true, several, (row, base) => (row === base ? none() : delta(row.peak_allocated_bytes, base.peak_allocated_bytes))],
  ["Peak reserved", true, undefined, (row) => known(bytes(row.peak_reserved_bytes))],
  ["vs baseline", true, several, (row, base) => (row === base ? none() : delta(row.peak_reserved_bytes, base.peak_reserved_bytes))],
  ["Step time", true, undefined, (row) => known(seconds(row.step_seconds_median))],
  ["time ratio", true, several, (row, base) => (row === base ? none() : ratioCell(row.step_time_ratio))],
  ["Fragm.", true, undefined, (row) => h("a", { class: "quiet-link", href: `/runs/${encodeURIComponent(row.run)}/fragmentation` }, known(percent(row.fragmentation_fraction)))],
  ["Leaked", true, some("leaks"), leakedCell],
  ["Graphs", true, some("graphs_alive"), (row) => known(count(row.graphs_alive))],
  ["Steps", true, undefined, (row) => known(count(row.steps))],
];

/** The baseline stands first. `colourOf(position)`: the colour of a run in the charts below. */
export function compareTable(rows, colourOf) {
  const columns = COLUMNS.filter(([, , needed]) => !needed || needed(rows));
  const marked = (position) => position === 0 && several(rows);
  const line = (row, position) =>
    h(
      "tr",
      { class: marked(position) ? "baseline" : null },
      h("th", { class: "run", scope: "row" }, h("span", { class: "name-line" }, h("span", { class: "swatch marker", style: { "--swatch": colourOf(position) } }), h("a", { href: `/runs/${encodeURIComponent(row.run)}` }, row.name), marked(position) && h("span", { class: "chip baseline" }, "baseline"))),
      columns.map(([, number, , content]) => h("td", { class: number ? "number" : null }, content(row, rows[0]))),
    );
  const head = columns.map(([name, number]) => h("th", { class: number ? "number" : null, scope: "col", title: TITLES[name] ?? null }, name));
  return h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "plain compare-table" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Run"), head)), h("tbody", {}, rows.map(line))));
}

const TITLES = { Leaked: "bytes that leaks hold, on the rank where that is most", Graphs: "graphs of earlier steps that were alive at the newest step" };

/** Nothing leaks is a finding; nobody has looked is none. */
function leakedCell(row) {
  if (!isKnown(row.leaks)) return known("unknown");
  if (row.leaks === 0) return h("span", { class: "less" }, "none");
  return h("a", { class: "more", href: `/runs/${encodeURIComponent(row.run)}/leaks`, title: `${row.leaks === 1 ? "1 leak" : `${row.leaks} leaks`}: ${row.worst_leak}` }, bytes(row.leaked_bytes));
}

function ratioCell(value) {
  if (!isKnown(value)) return known("unknown");
  return h("span", { class: value > 1.005 ? "more" : value < 0.995 ? "less" : "" }, ratio(value));
}

const leakedWords = (row) => (row.leaks === 0 ? "none" : bytes(row.leaked_bytes));

/** Rounded, with units; the first row is the head. */
export function rowsForPeople(rows) {
  const base = rows[0];
  const change = (row, field) => (isKnown(row[field]) && base[field] ? row[field] / base[field] - 1 : null);
  return [
    ["run", "techniques", "peak allocated", "vs baseline", "peak reserved", "vs baseline", "step time", "time ratio", "leaked", "graphs alive"],
    ...rows.map((row, i) => [row.name + (i === 0 ? " (baseline)" : ""), (row.techniques ?? []).join(", "), bytes(row.peak_allocated_bytes), i ? signedPercent(change(row, "peak_allocated_bytes")) : "", bytes(row.peak_reserved_bytes), i ? signedPercent(change(row, "peak_reserved_bytes")) : "", seconds(row.step_seconds_median), i ? ratio(row.step_time_ratio) : "", leakedWords(row), count(row.graphs_alive)]),
  ];
}

/** Bytes, seconds and fractions as they are; the first row is the head. */
export function rowsForPrograms(rows) {
  const fields = ["peak_allocated_bytes", "peak_reserved_bytes", "saved_fraction", "step_seconds_median", "step_time_ratio", "fragmentation_fraction", "leaks", "leaked_bytes", "worst_leak", "graphs_alive", "steps", "state"];
  return [["run_id", "name", "techniques", ...fields], ...rows.map((row) => [row.run, row.name, (row.techniques ?? []).join("+"), ...fields.map((field) => row[field] ?? null)])];
}
