/** A run as a row of the list. */

import { h } from "vramscope/dom.js";
import { icon } from "vramscope/parts/icons.js";

/**
 * Creates the row. `view`: columns that are shown; `base`: baseline of the project; `onSelect(on)`: the check box was
 * changed; `onPin()`: the pin was pressed.
 */
export function runRow(row, { view, base, chosen, onSelect, onPin }) {
  const tick = h("input", {
    type: "checkbox",
    checked: chosen,
    "aria-label": `select ${row.name}`,
    onchange: (event) => onSelect(event.target.checked),
  });
  const pinWords = row.pinned ? "unpin" : "pin to the top";
  return h(
    "tr",
    {
      class: [chosen && "chosen", row.baseline && "baseline"].filter(Boolean).join(" "),
      role: "row",
      "data-run": row.run_id,
    },
    h("td", { class: "tick", role: "cell" }, tick),
    view.columns.map(({ kind, cell }) =>
      h("td", { class: kind, role: "cell" }, cell(row, base, view)),
    ),
    h(
      "td",
      { class: "row-tools", role: "cell" },
      h(
        "button",
        {
          class: "button quiet small icon pin",
          type: "button",
          "aria-pressed": String(Boolean(row.pinned)),
          title: pinWords,
          "aria-label": `${pinWords}: ${row.name}`,
          onclick: onPin,
        },
        icon("pin"),
      ),
    ),
  );
}

const CONTROLS = "a, button, input";

/** Place of the control that has the focus, among those of a row. -1 if the row does not have it. */
export const focusWithin = (element) =>
  element ? [...element.querySelectorAll(CONTROLS)].indexOf(document.activeElement) : -1;

/** Gives the focus to the control at a place, after the row was drawn again. */
export function restoreFocus(element, place) {
  if (place >= 0) element.querySelectorAll(CONTROLS)[place]?.focus({ preventScroll: true });
}
