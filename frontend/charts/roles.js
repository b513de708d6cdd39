/** Series that the reader switched off in a legend: in all charts at once. */

import { onThemeChange } from "vramscope/theme.js";

export const hiddenRoles = new Set();

/** Switch a series off, or on again. */
export function toggleRole(role) {
  if (hiddenRoles.has(role)) hiddenRoles.delete(role);
  else hiddenRoles.add(role);
  redrawAll();
}

/** After a change of theme or legend: every chart, as soon as it may. */
export function redrawAll() {
  for (const chart of document.querySelectorAll("vs-chart")) {
    chart.builtLegend = null;
    chart.redraw();
  }
}

onThemeChange(redrawAll);
