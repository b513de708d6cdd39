/** Series that the reader switched off in a legend: in all charts at once, and in the address. */

import { setQuery, store } from "vramscope/store.js";
import { onThemeChange } from "vramscope/theme.js";

export const hiddenRoles = new Set();
let knownHide = null;

function read({ query: { hide = "" } }) {
  if (hide === knownHide) return false;
  knownHide = hide;
  hiddenRoles.clear();
  for (const role of hide.split(",")) if (role) hiddenRoles.add(role);
  return true;
}

read(store.get());
store.watch((state) => read(state) && redrawAll());

/** Switch a series off, or on again. */
export function toggleRole(role) {
  const shown = new Set(hiddenRoles);
  if (!shown.delete(role)) shown.add(role);
  setQuery({ hide: [...shown].join(",") });
}

/** After a change of theme or legend: every chart, as soon as it may. */
export function redrawAll() {
  for (const chart of document.querySelectorAll("vs-chart")) {
    chart.builtLegend = null;
    chart.redraw();
  }
}

onThemeChange(redrawAll);
