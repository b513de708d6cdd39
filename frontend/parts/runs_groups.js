/** Groups of the runs list: which group a run is in, and the row that summarizes a group. */

import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown } from "vramscope/format.js";
import { peakOf } from "vramscope/parts/peak_bound.js";

/** Group of a row, by the name of the grouping in the URL. Runs with the same set of tags are one group. */
const GROUP_OF = {
  project: (row) => row.project,
  state: (row) => row.state,
  tag: (row) => [...row.tags].sort().join(" · ") || "no tag",
};

export const GROUPS = Object.keys(GROUP_OF);

/** Peaks of a group in words: mean and range of the known ones. */
export function peaksInWords(rows) {
  const found = rows.map((row) => peakOf(row)).filter(({ value }) => isKnown(value));
  const peaks = found.map(({ value }) => value);
  if (peaks.length === 0) return "peak allocated: unknown";
  const unknown = rows.length - peaks.length;
  const mean = peaks.reduce((sum, peak) => sum + peak, 0) / peaks.length;
  const [lowest, highest] = [Math.min(...peaks), Math.max(...peaks)];
  const words = peaks.length === 1 ? bytes(mean) : `mean ${bytes(mean)}, ${bytes(lowest)} to ${bytes(highest)}`;
  const bounds = found.filter(({ isBound }) => isBound).length;
  const left = [unknown && `${count(unknown)} unknown`, bounds && `${count(bounds)} lower ${bounds === 1 ? "bound" : "bounds"}`];
  const notes = left.filter(Boolean).join(", ");
  return `peak allocated: ${words}${notes && ` (${notes})`}`;
}

export class RunsGroups {
  closed = new Set(); // names of the groups whose runs are hidden
  heads = new Map(); // name -> {element, text}

  /** `onChange` is called when a group is opened or closed, `choose(ids, on)` when all of its runs are selected. */
  constructor(onChange, choose) {
    Object.assign(this, { onChange, choose });
  }

  /**
   * Rows of the table: heads of groups and runs. The groups come in the order of their first run. `ids` are sorted;
   * `entryOf(id)` has the row and the element of a run.
   */
  elements(grouping, ids, entryOf, chosen) {
    if (!grouping) return ids.map((id) => entryOf(id).element);
    const groups = new Map();
    for (const id of ids) {
      const name = GROUP_OF[grouping](entryOf(id).row);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(id);
    }
    return [...groups].flatMap(([name, members]) => [
      this.head(grouping, name, members, members.map((id) => entryOf(id).row), chosen),
      ...(this.closed.has(name) ? [] : members.map((id) => entryOf(id).element)),
    ]);
  }

  head(grouping, name, ids, rows, chosen) {
    const key = `${grouping}\n${name}`;
    if (!this.heads.has(key)) this.heads.set(key, { element: h("tr", { class: "group", role: "row" }), text: null });
    const head = this.heads.get(key);
    const open = !this.closed.has(name);
    const selected = ids.filter((id) => chosen.has(id)).length;
    const text = [open, selected, ids.length, peaksInWords(rows), ids.join()].join("\n");
    if (head.text === text) return head.element;
    const focused = head.element.contains(document.activeElement) ? document.activeElement.className : null;
    head.text = text;
    fill(
      head.element,
      h(
        "td",
        { class: "tick", role: "cell" },
        h("input", {
          type: "checkbox",
          class: "all",
          checked: selected === ids.length,
          indeterminate: selected > 0 && selected < ids.length,
          "aria-label": `select all of ${grouping} ${name}`,
          onchange: (event) => this.choose(ids, event.target.checked),
        }),
      ),
      h(
        "td",
        { class: "group-cell", role: "cell" },
        h(
          "button",
          {
            class: "group-button",
            type: "button",
            "aria-expanded": String(open),
            onclick: () => this.toggle(name),
          },
          name,
        ),
        h("span", { class: "muted" }, `${count(ids.length)} ${ids.length === 1 ? "run" : "runs"}`),
        h("span", { class: "muted peaks" }, peaksInWords(rows)),
      ),
    );
    if (focused) head.element.querySelector(`.${focused}`)?.focus();
    return head.element;
  }

  toggle(name) {
    if (!this.closed.delete(name)) this.closed.add(name);
    this.onChange();
  }
}
