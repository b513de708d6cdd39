/** Address of the Compare page: runs, baseline, groups, columns, order, axis and search. */

import { anything, isNumber, oneOf } from "vramscope/parts/address.js";
import { store } from "vramscope/store.js";

const MOST_RUNS = 50; // same limit as api/compare.py
/** Value of `group` without groups. Empty: repeats of one configuration share a row. */
export const EACH = "each";
/** Value of `columns` where all are removed; without a value the standard ones are shown. */
export const NO_COLUMNS = "none";

/** Valid parameters of the page. */
export const RULES = {
  runs: anything,
  base: anything,
  group: anything,
  columns: anything,
  sort: anything,
  x: oneOf("time", "step"),
  from: isNumber,
  to: isNumber,
  diff: oneOf("all"),
  sites: anything,
  find: anything,
  loss: oneOf("log", "linear"),
};

const numberOf = (text) => (text && Number.isFinite(Number(text)) ? Number(text) : null);
const listOf = (text) => [
  ...new Set(
    text
      .split(",")
      .map((part) => part.trim())
      .filter(Boolean),
  ),
];

/** View of the URL. */
export function readComparison() {
  const { runs = "", base = "", group = "", columns = "", sort = "", ...query } = store.get().query;
  const ids = listOf(runs).slice(0, MOST_RUNS);
  return {
    runs: ids,
    base: ids.includes(base) ? base : base || ids[0] || null,
    group,
    columns: columns === NO_COLUMNS ? [] : columns ? listOf(columns) : null,
    sort: sort.replace(/^-/, "") || null,
    descending: sort.startsWith("-"),
    x: query.x === "time" ? "time" : "step",
    from: numberOf(query.from),
    to: numberOf(query.to),
    all: query.diff === "all",
    sites: query.sites ?? null,
    find: query.find ?? "",
    loss: query.loss,
  };
}
