/** Keys of the runs list. The run of the row that has the focus is the current one. */

import { onAction } from "vramscope/keys.js";

export class RunsKeys {
  /** `body`: the table's body; `editNoteOf(row)` opens the note of a row. */
  constructor(body, editNoteOf) {
    this.body = body;
    const press = (selector) => () => this.current()?.querySelector(selector)?.click();
    this.stops = [
      onAction("next", () => this.move(1)),
      onAction("previous", () => this.move(-1)),
      onAction("select", press(".tick input")),
      onAction("tags", press(".tags-button")),
      onAction("pin", press(".pin")),
      onAction("note", () => this.current() && editNoteOf(this.current())),
      onAction("actions", () => openMenu(".compare-bar:not([hidden]) .menu")),
      onAction("view", () => openMenu(".runs-view")),
    ];
  }

  close() {
    for (const stop of this.stops) stop();
  }

  current() {
    const row = document.activeElement?.closest("tr");
    return row && this.body.contains(row) ? row : null;
  }

  /** Moves the focus to the next row (1) or the previous one (-1); without a current row, to the first. */
  move(by) {
    const rows = [...this.body.children];
    const at = rows.indexOf(this.current());
    const row = rows[at < 0 ? 0 : Math.min(rows.length - 1, Math.max(0, at + by))];
    row?.querySelector(".name a, .group-button")?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: "nearest" });
  }
}

function openMenu(selector) {
  const menu = document.querySelector(selector);
  if (!menu) return;
  menu.open = true;
  menu.querySelector("input, select, button")?.focus();
}
