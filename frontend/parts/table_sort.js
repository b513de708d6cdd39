/** Order of a small table by one of its columns. A press on a head sorts, then in reverse, then not at all. */

import { h } from "vramscope/dom.js";

const WORDS = new Intl.Collator("en", { numeric: true });

const compared = (a, b) => (typeof a === "string" && typeof b === "string" ? WORDS.compare(a, b) : a < b ? -1 : 1);

/** Rows in the order of their keys: numbers in words, too, so that GPU 2 comes before GPU 10. Unknown ones are last in both directions. */
export function inOrder(rows, key, descending) {
  const sign = descending ? -1 : 1;
  const keyed = rows.map((row) => [key(row) ?? null, row]);
  keyed.sort(([a], [b]) => {
    if (a === b) return 0;
    if (a === null) return 1;
    if (b === null) return -1;
    return sign * compared(a, b);
  });
  return keyed.map(([, row]) => row);
}

/** Kept by a page for each of its tables, because the table is drawn again with every answer. */
export class TableSort {
  column = null;
  descending = false;

  /** `onChange()` draws the table again. */
  constructor(onChange) {
    this.onChange = onChange;
  }

  /** Head of a column. Numbers begin with the largest. */
  head(label, kind = null) {
    const on = label === this.column;
    const isNumber = kind?.split(" ").includes("number") ?? false;
    const press = () => {
      const isFirst = !on || this.descending === isNumber; // the direction that a column begins with
      Object.assign(this, !on ? { column: label, descending: isNumber } : isFirst ? { descending: !isNumber } : { column: null });
      this.onChange();
      document.querySelector(`[data-sort="${CSS.escape(label)}"]`)?.focus({ preventScroll: true }); // it was drawn again
    };
    return h(
      "th",
      { class: kind, scope: "col", "aria-sort": on ? (this.descending ? "descending" : "ascending") : null },
      h("button", { class: "sorter", type: "button", "data-sort": label, onclick: press }, label),
    );
  }

  /** Rows in the chosen order. `keys`: key of a row by the label of a column. */
  order(rows, keys) {
    const key = keys[this.column];
    return key ? inOrder(rows, key, this.descending) : rows;
  }

  get state() {
    return [this.column, this.descending];
  }
}
