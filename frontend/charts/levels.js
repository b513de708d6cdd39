/** Legend of a chart whose parts belong to levels: a tree of levels that fold, with numbers over all rows of the window. */

import { fill, h, setText } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { drawMarkers } from "vramscope/charts/legend.js";

const LEVELS = [
  ["card", "in use on the card", "memory in use on the device, of all processes"],
  ["reserved", "reserved", "bytes that PyTorch took from the device"],
  ["allocated", "allocated", "bytes in blocks that tensors own"],
];
const COLUMNS = [
  ["last", "last", "in the last finished step"],
  ["peak", "at peak", "in the step with most allocated"],
  ["highest", "highest", "highest value in view"],
];
/** Parts that a step has only if something is unknown: without a value they are none, not unknown. */
const EXCEPTIONS = new Set(["unsplit", "unused", "outside", "private"]);

/** Draws the tree. `isOpen(level)`, `toggle(level)`: the reader's choice. */
export function drawLevels(chart, colors, { isOpen, toggle }) {
  const { levels, peak } = chart.figure.layout.meta;
  if (!levels) return;
  const parts = chart.traces.filter((trace) => trace.meta.level);
  const rows = rowsOf(parts, levels, isOpen);
  const key = rows.map(({ id, open, swatch }) => `${id}${open}${swatch}`).join("|");
  if (chart.builtLegend !== key) build(chart, rows, key, parts[0]?.meta.axisUnit, toggle);
  for (const { id, swatch, numbers, divisor, exception } of rows) {
    const row = chart.legendRows.get(id);
    if (swatch) row.swatch.style.setProperty("--swatch", colors.role(swatch));
    COLUMNS.forEach(([name], i) => {
      const value = numbers?.[name] ?? null;
      setText(row.cells[i], value === null ? (exception ? "–" : "unknown") : (value / divisor).toFixed(2));
      row.cells[i].title = value === null ? "" : `${count(value)} bytes`;
      row.cells[i].classList.toggle("muted", value === null);
    });
  }
  drawMarkers(chart, colors);
  const sentence = chart.options.describe(chart);
  if (peak && chart.getAttribute("aria-label") !== sentence) chart.setAttribute("aria-label", sentence);
  chart.setAttribute("role", "figure");
}

/** Rows of the tree from the card to the tensors. Rows inside a folded level are left out. */
function rowsOf(parts, levels, isOpen) {
  const rows = [];
  const divisor = parts[0]?.meta.divisor ?? 1;
  for (const [depth, [level, label, meaning]] of LEVELS.entries()) {
    const numbers = levels[level];
    const folds = numbers.last !== null || numbers.peak !== null; // without the total there is nothing to draw when folded
    const open = isOpen(level) || !folds;
    const own = parts.filter(({ meta }) => meta.level === level).toReversed();
    const folded = own.find(({ meta }) => meta.role === level)?.meta.colour ?? level;
    rows.push({ id: level, level, label, meaning, depth, open, folds, numbers, divisor, swatch: open ? null : folded });
    for (const { meta } of own) {
      if (meta.shown !== (open ? "open" : "folded") || meta.role === level) continue;
      const { role, colour, numbers: own } = meta;
      rows.push({ id: role, label: meta.label, meaning: meta.meaning, depth: depth + 1, numbers: own, divisor, swatch: colour, exception: EXCEPTIONS.has(role) });
    }
    if (!open) break;
  }
  return rows;
}

function build(chart, rows, key, unit, toggle) {
  const focused = chart.legend.contains(document.activeElement) && document.activeElement.dataset.fold;
  chart.builtLegend = key;
  chart.legendRows = new Map();
  const body = h("tbody");
  for (const { id, level, label, meaning, depth, open, folds, swatch } of rows) {
    const mark = swatch && h("span", { class: "swatch" });
    const name = [mark, h("span", { class: "legend-name" }, label)];
    const button =
      level && folds
        ? h(
            "button",
            {
              class: "fold",
              type: "button",
              "aria-expanded": String(open),
              "data-fold": level,
              title: `${open ? "fold" : "unfold"} ${label}: ${meaning}`,
              onclick: () => toggle(level),
            },
            name,
          )
        : h("span", { class: level ? "fold fixed" : "legend-part", title: meaning }, name);
    const cells = COLUMNS.map(([column]) => h("td", { class: `number ${column}` }));
    body.append(
      h(
        "tr",
        { class: level ? "level-row" : "", "data-part": id, style: { "--depth": String(depth) } },
        h("th", { scope: "row" }, button),
        cells,
      ),
    );
    chart.legendRows.set(id, { swatch: mark, cells });
  }
  const head = h(
    "tr",
    {},
    h("th", {}, unit),
    COLUMNS.map(([name, text, meaning]) => h("th", { class: `number ${name}`, scope: "col", title: meaning }, text)),
  );
  fill(chart.legend, h("table", {}, h("thead", {}, head), body), (chart.markers = h("div", { class: "legend-markers" })));
  if (focused) chart.legend.querySelector(`[data-fold=${focused}]`)?.focus();
}
