/** Legend as a table of the values in view, and as a sentence for screen readers. */

import { hiddenRoles, toggleRole } from "vramscope/charts/roles.js";
import { fill, h, setText } from "vramscope/dom.js";
import { quantity } from "vramscope/format.js";
import { highest, stats, windowStats } from "vramscope/series.js";

/** Draws one row for each role. A click hides or shows the role in all charts. */
export function drawLegend(chart, colors) {
  const [from, to] = chart.xRange();
  const kind = chart.figure.layout.meta?.kind ?? "series";
  const roles = new Map();
  for (const trace of chart.traces) {
    const meta = trace.meta ?? {};
    if (meta.legend === false) continue;
    const group = roles.get(meta.role) ?? { meta, parts: {} };
    group.parts[meta.part ?? "value"] = trace;
    if (meta.part === "mean" || meta.part === "value" || meta.part === undefined) group.meta = meta;
    roles.set(meta.role, group);
  }
  const within = (trace) =>
    kind === "series" ? trace.y.filter((_, i) => trace.x[i] >= from && trace.x[i] <= to) : trace.y;
  const key = [...roles.keys()].join("|");
  if (chart.builtLegend !== key) {
    chart.builtLegend = key;
    chart.legendRows = new Map();
    const numbers = kind === "series";
    chart.legend.classList.toggle("plainly", !numbers);
    const body = h("tbody");
    for (const [role, { meta }] of asStacked(roles)) {
      const swatch = h("span", { class: `swatch ${meta.swatch ?? meta.kind ?? "line"}${meta.hatched ? " hatched" : ""}` });
      const toggle = h(
        "button",
        {
          class: "legend-toggle",
          type: "button",
          "aria-pressed": "true",
          title: meta.meaning ?? meta.label ?? null,
          onclick: () => toggleRole(role),
        },
        swatch,
        h("span", { class: "legend-name" }, meta.label ?? role),
      );
      const cells = numbers ? ["last", "min", "mean", "max"].map((name) => h("td", { class: `number ${name}` })) : [];
      body.append(h("tr", {}, h("th", { scope: "row" }, toggle), cells));
      chart.legendRows.set(role, { swatch, toggle, cells });
    }
    fill(
      chart.legend,
      h(
        "table",
        {},
        numbers &&
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", {}, h("span", { class: "offscreen" }, "series")),
              ["last", "min", "mean", "max"].map((name) => h("th", { class: `number ${name}`, scope: "col" }, name)),
            ),
          ),
        body,
      ),
    );
  }
  for (const [role, { meta, parts }] of roles) {
    const row = chart.legendRows.get(role);
    const off = hiddenRoles.has(role);
    row.toggle.setAttribute("aria-pressed", String(!off));
    row.swatch.style.setProperty("--swatch", colors.role(meta.colour ?? role));
    if (row.cells.length === 0) continue;
    const trace = parts.mean ?? parts.value ?? Object.values(parts)[0];
    const { last, min, mean, max } = ofEveryRow(chart, trace, from, to) ?? ofDrawn(parts, trace, within);
    const divisor = meta.divisor ?? 1;
    [last, min, mean, max].forEach((value, i) => {
      setText(row.cells[i], value === null ? "—" : quantity(value * divisor, meta.unit));
    });
  }
  const sentence = chart.options.describe?.(chart) ?? inWords(chart, roles, within);
  if (chart.getAttribute("aria-label") !== sentence) chart.setAttribute("aria-label", sentence);
  chart.setAttribute("role", "figure");
}

/** Roles in the order of the legend: lines, then areas from the top of the stack to its bottom. */
function asStacked(roles) {
  const isStacked = ([, { parts }]) => Object.values(parts).some((trace) => trace.stackgroup);
  const entries = [...roles];
  const stack = entries.filter(isStacked);
  return [...entries.filter((one) => !isStacked(one)), ...stack.toReversed()];
}

/** Lists the markers of a chart whose legend is a tree. */
export function drawMarkers(chart, colors) {
  const marks = chart.traces.filter(({ meta, x }) => meta.kind === "marker" && x.length);
  const key = marks.map(({ meta }) => meta.role).join("|");
  if (chart.markers.dataset.key === key) return;
  chart.markers.dataset.key = key;
  fill(
    chart.markers,
    marks.map(({ meta }) =>
      h(
        "span",
        { title: meta.meaning },
        h("span", { class: "swatch marker", style: { "--swatch": colors.role(meta.colour ?? meta.role) } }),
        meta.label,
      ),
    ),
  );
}

/** Statistics over all rows of the window. Null if every row is drawn, or if only a part of the window is in view. */
function ofEveryRow(chart, trace, from, to) {
  const whole = trace.meta?.whole;
  if (!whole || from > trace.x[0] || to < trace.x.at(-1)) return null;
  return windowStats(whole, trace.y.slice(chart.fetched[chart.traces.indexOf(trace)]));
}

/** Statistics of the drawn values in view. */
function ofDrawn(parts, trace, within) {
  const main = stats(within(trace));
  return {
    ...main,
    min: parts.min ? stats(within(parts.min)).min : main.min,
    max: parts.max ? stats(within(parts.max)).max : main.max,
  };
}

function inWords(chart, roles, within) {
  const parts = [];
  if (chart.figure.layout.meta?.kind === "static") {
    for (const { meta, y, x } of chart.traces) {
      y.forEach((value, i) => {
        if (meta.kind === "line" || typeof value !== "number" || !Number.isFinite(value)) return;
        const where = typeof x[i] === "string" && x[i] !== meta.label ? ` of ${x[i]}` : "";
        parts.push(`${meta.label}${where} ${quantity(value * (meta.divisor ?? 1), meta.unit)}`);
      });
    }
    return `${chart.options.title}: ${parts.slice(0, 60).join(", ") || "nothing recorded yet"}.`;
  }
  for (const { meta, parts: traces } of roles.values()) {
    const top = highest(within(traces.max ?? traces.mean ?? traces.value ?? Object.values(traces)[0]));
    if (top !== null) parts.push(`${meta.label} up to ${quantity(top * (meta.divisor ?? 1), meta.unit)}`);
  }
  return `${chart.options.title}: ${parts.join(", ") || "nothing recorded yet"}.`;
}
