/** Icons of the pages. */

import { svg } from "vramscope/dom.js";

const PATHS = {
  runs: "M4 6h16M4 12h16M4 18h10",
  snapshots: "M4 20h16M4 16l4-5 4 3 4-8 4 6M4 4v16",
  compare: "M5 20V10M10 20V4M15 20v-7M20 20V8",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.5v5M9 14.5v5",
  help: "M9.2 9a2.9 2.9 0 1 1 4.3 2.6c-1 .6-1.5 1.1-1.5 2.4M12 17.4v.2",
  moon: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
  pin: "M9 4h6l-1 7 3 3H7l3-3zM12 14v6",
};

/** Icon of 24 by 24, drawn with lines. */
export function icon(name) {
  return svg(
    "svg",
    {
      viewBox: "0 0 24 24",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.8",
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
      "aria-hidden": "true",
    },
    svg("path", { d: PATHS[name] }),
  );
}

/** Logo: memory of a training below the capacity of the device. */
export function logo() {
  return svg(
    "svg",
    {
      viewBox: "0 0 40 22",
      fill: "none",
      "aria-hidden": "true",
      "stroke-linejoin": "round",
      "stroke-linecap": "round",
    },
    svg("path", { d: "M2 3h36", stroke: "var(--role-capacity)", "stroke-width": "1.6", "stroke-dasharray": "3 3" }),
    svg("path", { d: "M2 20l8-12 2 12 8-12 2 12 8-12 2 12h6", stroke: "var(--role-allocated)", "stroke-width": "2.2" }),
  );
}
