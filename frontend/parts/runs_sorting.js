/** Order of the runs list: by one column of the URL, or as the server answers. */

import { h } from "vramscope/dom.js";
import { RUNS_COLUMNS as COLUMNS } from "vramscope/parts/runs_columns.js";
import { setQuery, store } from "vramscope/store.js";

const LOWEST_FIRST = ["Run", "Device"]; // columns of text; the others start with the highest

/** Name of a column in the URL: "Peak allocated" is `peak_allocated`. */
const inAddress = (label) => label.toLowerCase().replace(/\W+/g, "_").replace(/_$/, "");

const SORTS = COLUMNS.filter(([, , key]) => key).flatMap(([, label]) => [inAddress(label), `-${inAddress(label)}`]);

/** True if a text is a valid `sort` of the URL. A minus before the column: highest first. */
export const isSort = (text) => SORTS.includes(text);

export class RunsSorting {
  column = null; // label of the column; null: as the server answers
  descending = false;

  constructor() {
    this.heads = COLUMNS.map(([kind, label, key, , meaning]) =>
      h(
        "th",
        { class: kind, scope: "col", title: meaning ?? null },
        key ? h("button", { class: "sorter", type: "button", onclick: () => this.sortBy(label) }, label) : label,
      ),
    );
  }

  get isOn() {
    return this.column !== null;
  }

  /** Reads the order from the URL and marks the column's head. Returns whether it changed. */
  read() {
    const { sort = "" } = store.get().query;
    const name = sort.replace(/^-/, "");
    const column = COLUMNS.find(([, label, key]) => key && inAddress(label) === name)?.[1] ?? null;
    const descending = column !== null && sort !== name;
    const changed = column !== this.column || descending !== this.descending;
    Object.assign(this, { column, descending });
    this.mark();
    return changed;
  }

  mark() {
    COLUMNS.forEach(([, label], i) => {
      const button = this.heads[i].querySelector(".sorter");
      if (!button) return;
      if (this.column === label) button.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else button.removeAttribute("aria-sort");
    });
  }

  /** Handles a click on a head: sorts by the column, then in reverse, then as the server answers. */
  sortBy(label) {
    const first = !LOWEST_FIRST.includes(label);
    const again = this.column === label;
    if (again && this.descending !== first) setQuery({ sort: null });
    else setQuery({ sort: `${(again ? !first : first) ? "-" : ""}${inAddress(label)}` });
  }

  /** Sorts run ids. `rowOf` returns a run's row. Unknown values come last in both directions. */
  sorted(ids, rowOf) {
    if (!this.isOn) return ids;
    const key = COLUMNS.find(([, label]) => label === this.column)[2];
    const sign = this.descending ? -1 : 1;
    return [...ids].sort((a, b) => {
      const [x, y] = [key(rowOf(a)), key(rowOf(b))];
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return x < y ? -sign : sign;
    });
  }
}
