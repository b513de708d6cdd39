/** Table of runs or groups of runs against the baseline, which stays the first row whatever the order. */

import { h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { pageOf } from "vramscope/parts/compare_cells.js";
import { inOrder } from "vramscope/parts/table_sort.js";
import { setQuery } from "vramscope/store.js";

/** Name of a row: the title of a group, or the run. */
export const rowName = (row) => row.title ?? row.name;

/** Rows in the order of a column. The baseline is first. Unknown values come last in both directions. */
export function sortedRows(rows, column, descending) {
  if (!column) return rows;
  const [base, ...others] = rows;
  return [base, ...inOrder(others, column.key, descending)];
}

/** Reasons that all of several rows share. They are written once, above the table. */
export function sharedReasons(rows) {
  if (rows.length < 2) return [];
  return rows[0].reasons.filter(({ text }) => rows.every((row) => row.reasons.some((reason) => reason.text === text)));
}

const textOf = (reasons) => reasons.map((reason) => reason.text).join("; ");

function rowsInWords(some, all) {
  if (some < all) return `${count(some)} of ${count(all)} rows ${some === 1 ? "is" : "are"}`;
  return all === 2 ? "Both rows are" : `All ${count(all)} rows are`;
}

/** Summary of what is not comparable, in one sentence. Null if all rows are comparable. */
export function comparability(rows) {
  if (rows.length === 1) return rows[0].reasons.length > 0 ? `${rowName(rows[0])}: ${textOf(rows[0].reasons)}.` : null;
  const shared = sharedReasons(rows);
  const marked = rows.filter((row) => row.reasons.length > shared.length);
  const words = [
    shared.length > 0 && `All runs: ${textOf(shared)}.`,
    marked.length > 0 && `${rowsInWords(marked.length, rows.length)} marked ⚠ in the table, with the reasons.`,
  ].filter(Boolean);
  return words.length > 0 ? words.join(" ") : null;
}

/**
 * Table of the rows, the baseline first.
 *
 * columns          columns to show
 * sort, descending id of the column that orders the rows, or null
 * colourOf(run)    colour of a run in the charts
 */
export function compareTable(rows, { columns, sort, descending, colourOf }) {
  const ordered = sortedRows(rows, columns.find(({ id }) => id === sort) ?? null, descending);
  const shared = new Set(sharedReasons(rows).map(({ text }) => text));
  const isBase = (row) => row === rows[0] && rows.length > 1;
  const line = (row) =>
    h(
      "tr",
      { class: isBase(row) ? "baseline" : null, "data-run": row.run },
      h(
        "th",
        { class: "run", scope: "row" },
        runCell(row, isBase(row), colourOf),
        reasonsCell(row.reasons.filter(({ text }) => !shared.has(text))),
      ),
      columns.map(({ text, isSetting, of, cell }) =>
        h("td", { class: text ? (isSetting ? "setting" : null) : of ? "number change" : "number" }, cell(row, rows[0])),
      ),
    );
  return h(
    "div",
    { class: "scroll", tabindex: "0" },
    h(
      "table",
      { class: "plain compare-table" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Run"),
          columns.map((column) => head(column, sort, descending)),
        ),
      ),
      h("tbody", {}, ordered.map(line)),
    ),
  );
}

/** Head of a column. A click sorts by it, then in reverse, then not at all. */
function head({ id, label, of, text, meaning }, sort, descending) {
  const on = id === sort;
  const next = !on ? id : descending ? null : `-${id}`;
  return h(
    "th",
    {
      class: text ? null : "number",
      scope: "col",
      title: meaning ?? null,
      "aria-sort": on ? (descending ? "descending" : "ascending") : null,
    },
    h(
      "button",
      { class: "sorter", type: "button", "data-sort": id, onclick: () => setQuery({ sort: next }) },
      label,
      of && h("span", { class: "offscreen" }, ` of ${of.toLowerCase()}`),
    ),
  );
}

function runCell(row, isBase, colourOf) {
  const badge = isBase && h("span", { class: "chip baseline" }, "baseline");
  const runs = row.runs ?? [row];
  const line = (one, mark) =>
    h(
      "span",
      { class: "name-line" },
      h("span", { class: "swatch marker", style: { "--swatch": colourOf(one.run) } }),
      h("a", { href: pageOf(one.run), title: one.name }, one.name),
      mark,
    );
  if (runs.length === 1 && (row.group ?? null) === null) return line(runs[0], badge);
  return h(
    "details",
    { class: "members" },
    h("summary", {}, h("span", { class: "name-line" }, h("span", {}, rowName(row)), badge)),
    runs.map((one) => line(one)),
  );
}

function reasonsCell(reasons) {
  if (reasons.length === 0) return null;
  const text = textOf(reasons);
  return h(
    "span",
    { class: "reasons", title: text },
    h("span", { role: "img", "aria-label": "not fully comparable" }, "⚠ "),
    text,
  );
}
