/** Series that are hidden by a click in a legend. The choice applies to all charts and is kept in the URL. */

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

/** Hides a series, or shows it again. */
export function toggleRole(role) {
  const shown = new Set(hiddenRoles);
  if (!shown.delete(role)) shown.add(role);
  setQuery({ hide: [...shown].join(",") });
}

/** Redraws every chart, after a change of theme or legend. */
export function redrawAll() {
  for (const chart of document.querySelectorAll("vs-chart")) {
    chart.builtLegend = null;
    chart.redraw();
  }
}

onThemeChange(redrawAll);
