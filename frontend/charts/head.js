/** Head of a chart: title and buttons. */

import { toggleScale } from "vramscope/charts/scale.js";
import { h } from "vramscope/dom.js";
import { tableItems } from "vramscope/parts/table_download.js";

/** Creates the head, and the two buttons that the chart updates. `scaleButton` exists only for charts with `scale`. */
export function chartHead(chart) {
  const { title, scale, numbers, download } = chart.options;
  const button = (label, hint, onclick) =>
    h(
      "button",
      { class: "button quiet small", type: "button", "aria-pressed": "false", title: hint, onclick },
      label,
    );
  const item = (label, kind) =>
    h("button", { type: "button", class: "menu-item", onclick: (event) => chart.export(kind, event) }, label);
  const hasNumbers = numbers !== false;
  const tableButton = button("Table", "view as table", () => chart.toggleTable());
  const scaleButton = scale && button("Log axis", null, () => toggleScale(chart));
  const exports = h(
    "details",
    { class: "menu" },
    h("summary", { class: "button quiet small", title: "export" }, "Export"),
    h(
      "div",
      { class: "menu-list" },
      item("PNG picture", "png"),
      item("SVG picture", "svg"),
      hasNumbers && item("CSV numbers", "csv"),
      download && tableItems(download.table, download.query, download.what),
    ),
  );
  const head = h(
    "header",
    { class: "chart-head" },
    h("h2", {}, title),
    h("span", { class: "chart-tools" }, scaleButton, hasNumbers && tableButton, exports),
  );
  return { head, tableButton, scaleButton };
}
