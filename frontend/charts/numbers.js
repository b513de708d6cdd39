/** Values of a chart: a table in the page, and exported files. */

import { themedTraces } from "vramscope/charts/theming.js";
import { themeColors } from "vramscope/theme.js";
import { download, fill, h } from "vramscope/dom.js";
import { joined, toCsv } from "vramscope/series.js";

const TABLE_ROWS = 200;

function tableContent(chart) {
  const shown = chart.traces.filter((trace) => trace.x.length && trace.meta?.table !== false);
  const x = chart.figure?.layout.meta?.x;
  const label = (trace) => {
    const { label, part, axisUnit } = trace.meta ?? {};
    const name = `${label ?? trace.name}${part && part !== "value" ? ` (${part})` : ""}`;
    return axisUnit ? `${name}, ${axisUnit}` : name;
  };
  const { head, rows } = joined(
    x === "time" ? "seconds since start" : x === "step" ? "step" : (x ?? "x"),
    shown.map((trace) => ({ ...trace, name: label(trace) })),
  );
  const end = chart.figure?.layout.meta?.end ?? Infinity; // a drawing of events lasts until here; there is no event
  return { head, rows: rows.filter(([at]) => !(at >= end)) };
}

/** Draws a table of the last rows. */
export function drawTable(chart) {
  const { head, rows } = tableContent(chart);
  const shown = rows.slice(-TABLE_ROWS);
  const text = (value) =>
    value === null ? "—" : typeof value === "number" ? String(Number(value.toPrecision(7))) : value;
  fill(
    chart.table,
    rows.length > shown.length &&
      h("p", { class: "muted" }, `Last ${TABLE_ROWS} of ${rows.length} rows. The CSV has all.`),
    h(
      "div",
      { class: "scroll", tabindex: "0" },
      h(
        "table",
        { class: "plain" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            head.map((name) => h("th", { scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          {},
          shown.map((row) =>
            h(
              "tr",
              {},
              row.map((value) => h("td", { class: "number" }, text(value))),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Saves the chart as `kind`: csv, png or svg. */
export async function exportChart(chart, kind, event) {
  event.target.closest("details").open = false;
  const name = `${chart.options.file ?? "vramscope"}.${kind}`;
  if (kind === "csv") {
    const { head, rows } = tableContent(chart);
    download(name, toCsv([head, ...rows]), "text/csv");
    return;
  }
  if (!chart.drawn) return;
  const colors = themeColors();
  const data = themedTraces(chart, colors);
  const layout = {
    ...chart.plot.layout,
    paper_bgcolor: colors.surface,
    title: { text: escapeText(chart.options.title), font: { color: colors.text } },
    margin: { ...chart.plot.layout.margin, t: 48 },
    showlegend: data.length < 20,
  };
  download(
    name,
    await window.Plotly.toImage(
      { data, layout },
      { format: kind, width: 1200, height: 500, scale: kind === "png" ? 2 : 1 },
    ),
  );
}

/** Escapes text for Plotly, which interprets some HTML. */
const escapeText = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
