/** Order of the runs list: by one column of the URL, or as the server answers. */

import { h } from "vramscope/dom.js";
import { RUNS_COLUMNS as COLUMNS } from "vramscope/parts/runs_columns.js";
import { setQuery, store } from "vramscope/store.js";

/** Columns of text. The others start with the highest value. */
const LOWEST_FIRST = ["state", "run", "project", "tags", "note", "techniques", "device"];

const SORTABLE = COLUMNS.filter(({ key }) => key);
const SORTS = SORTABLE.flatMap(({ id }) => [id, `-${id}`]);

/** True if a text is a valid `sort` of the URL. A minus before the column: highest first. */
export const isSort = (text) => SORTS.includes(text);

export class RunsSorting {
  column = null; // null: as the server answers
  descending = false;

  constructor() {
    this.heads = new Map(
      COLUMNS.map(({ id, kind, label, key, meaning }) => [
        id,
        h(
          "th",
          { class: kind, scope: "col", role: "columnheader", title: meaning ?? null },
          key ? h("button", { class: "sorter", type: "button", onclick: () => this.sortBy(id) }, label) : label,
        ),
      ]),
    );
    this.list = h(
      "select",
      { "aria-label": "Sort by", onchange: (event) => setQuery({ sort: event.target.value || null }) },
      h("option", { value: "" }, "Newest first"),
      SORTABLE.map(({ id, label }) => {
        const [up, down] = LOWEST_FIRST.includes(id) ? ["A to Z", "Z to A"] : ["lowest first", "highest first"];
        return [
          h("option", { value: id }, `${label}, ${up}`),
          h("option", { value: `-${id}` }, `${label}, ${down}`),
        ];
      }),
    );
  }

  get isOn() {
    return this.column !== null;
  }

  /** Reads the order from the URL and marks the column's head. Returns whether it changed. */
  read() {
    const { sort = "" } = store.get().query;
    const name = sort.replace(/^-/, "");
    const column = SORTABLE.find(({ id }) => id === name) ?? null;
    const descending = column !== null && sort !== name;
    const changed = column !== this.column || descending !== this.descending;
    Object.assign(this, { column, descending });
    this.mark();
    return changed;
  }

  mark() {
    for (const [id, head] of this.heads) {
      if (this.column?.id === id) head.setAttribute("aria-sort", this.descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.list.value = this.column ? `${this.descending ? "-" : ""}${this.column.id}` : "";
  }

  /** Handles a click on a head: sorts by the column, then in reverse, then as the server answers. */
  sortBy(id) {
    const first = !LOWEST_FIRST.includes(id);
    const again = this.column?.id === id;
    if (again && this.descending !== first) setQuery({ sort: null });
    else setQuery({ sort: `${(again ? !first : first) ? "-" : ""}${id}` });
  }

  /**
   * Sorts run ids. `rowOf` returns a run's row, `baseOf` the baseline of a row's project. Unknown values come last in
   * both directions.
   */
  sorted(ids, rowOf, baseOf) {
    if (!this.isOn) return ids;
    const { key } = this.column;
    const sign = this.descending ? -1 : 1;
    const keys = new Map(ids.map((id) => [id, key(rowOf(id), baseOf(rowOf(id))) ?? null]));
    return [...ids].sort((a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (x === y) return 0;
      if (x === null) return 1;
      if (y === null) return -1;
      return x < y ? -sign : sign;
    });
  }
}
