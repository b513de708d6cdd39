/** What Python built, in the colours of the theme and with the ranges of the view: the figure's data stay as they are. */

import { hiddenRoles } from "vramscope/charts/roles.js";
import { clockTicks, closeRange, smoothed, timeTicks } from "vramscope/series.js";
import { rgba } from "vramscope/theme.js";

const COARSE = matchMedia("(pointer: coarse)");

/** The layout to draw with. */
export function themedLayout(chart, colors) {
  const source = chart.figure.layout;
  const layout = { ...source, template: "none" };
  layout.font = { ...(source.font ?? {}), family: colors.font, size: 12, color: colors.muted };
  layout.paper_bgcolor = "rgba(0,0,0,0)";
  layout.plot_bgcolor = "rgba(0,0,0,0)";
  layout.hoverlabel = { bgcolor: colors.surface, bordercolor: colors.line, font: { family: colors.font, size: 12, color: colors.text } };
  layout.width = chart.plot.clientWidth || undefined;
  layout.height = chart.plot.clientHeight || undefined;
  layout.datarevision = chart.revision += 1;
  layout.uirevision = "kept";
  layout.dragmode = chart.options.onZoom && !COARSE.matches ? "zoom" : false;
  const kind = source.meta?.kind ?? "series";
  const [from, to] = kind === "series" ? chart.xRange() : [0, 1];
  for (const key of Object.keys(source)) {
    if (/^[xy]axis\d*$/.test(key)) layout[key] = themedAxis(chart, key, source[key], kind, from, to, colors);
  }
  layout.shapes = (source.shapes ?? []).map((shape) => ({
    ...shape,
    line: { ...(shape.line ?? {}), color: colors.role(shape.name ?? "capacity") },
    label: shape.label && { ...shape.label, font: { ...(shape.label.font ?? {}), color: colors.muted } },
  }));
  layout.annotations = (source.annotations ?? []).map((note) => ({ ...note, font: { ...(note.font ?? {}), color: colors.muted } }));
  return layout;
}

function themedAxis(chart, key, source, kind, from, to, colors) {
  const axis = { ...source, gridcolor: colors.grid, linecolor: colors.line, zerolinecolor: colors.line, tickcolor: colors.line };
  axis.tickfont = { ...(source.tickfont ?? {}), color: colors.muted };
  if (kind !== "series") return axis;
  if (key.startsWith("x")) {
    Object.assign(axis, { spikecolor: colors.muted, spikethickness: 1, spikedash: "dash", spikemode: "across" });
    axis.range = [from, to];
    axis.autorange = false;
    if (chart.figure.layout.meta?.x === "time") {
      const most = Math.max(2, Math.floor((chart.plot.clientWidth || 600) / 90));
      const onClock = chart.options.view?.().clock;
      const ticks = onClock ? clockTicks(from, to, chart.figure.layout.meta.x0_seconds, most) : timeTicks(from, to, most);
      Object.assign(axis, { tickmode: "array", tickvals: ticks.values, ticktext: ticks.texts });
      axis.title = { ...source.title, text: onClock ? "time of day" : "time since start" };
    }
    return axis;
  }
  axis.fixedrange = true;
  if (source.autorange === false && source.range) return axis;
  const top = highestOn(chart, key.replace("axis", ""), from, to);
  axis.autorange = false;
  if (source.rangemode === "normal") {
    // What only the first steps needed would set the scale; where the figure says from when on things had settled, that counts.
    const since = Math.max(from, (chart.options.view?.().from ?? null) === null ? (chart.figure.layout.meta?.settled ?? from) : from);
    axis.range = closeRange(lowestOn(chart, key.replace("axis", ""), since, to), top);
    return axis;
  }
  const capacity = key === "yaxis" ? chart.figure.layout.meta?.capacity : null;
  let ceiling = (top || 1) * 1.07;
  // The capacity belongs in the picture once half of it is in use; before, it would press the data to the floor.
  if (capacity && top > capacity * 0.5) ceiling = Math.max(ceiling, capacity * 1.12);
  axis.range = [0, ceiling];
  return axis;
}

function highestOn(chart, axis, from, to) {
  let top = 0;
  const stacks = new Map();
  for (const trace of chart.traces) {
    if ((trace.yaxis ?? "y") !== axis || hiddenRoles.has(trace.meta?.role)) continue;
    const { x, y } = trace;
    if (trace.stackgroup || (trace.type === "bar" && chart.figure.layout.barmode === "stack")) {
      x.forEach((at, i) => {
        if (at >= from && at <= to && y[i] > 0) stacks.set(at, (stacks.get(at) ?? 0) + y[i]);
      });
    } else {
      for (let i = 0; i < x.length; i += 1) if (x[i] >= from && x[i] <= to && y[i] > top) top = y[i];
    }
  }
  for (const sum of stacks.values()) if (sum > top) top = sum;
  return top;
}

function lowestOn(chart, axis, from, to) {
  let bottom = Infinity;
  for (const { x, y, yaxis, meta } of chart.traces) {
    if ((yaxis ?? "y") !== axis || hiddenRoles.has(meta?.role)) continue;
    for (let i = 0; i < x.length; i += 1) if (x[i] >= from && x[i] <= to && Number.isFinite(y[i]) && y[i] < bottom) bottom = y[i];
  }
  return Number.isFinite(bottom) ? bottom : 0;
}

/** What is smoothed is the mean over this share of the window in view. */
export const SMOOTHED_SHARE = 0.02;

/** The traces to draw. Where the reader wants lines smooth, the measured line stays behind its mean, and hovering tells what was measured. */
export function themedTraces(chart, colors) {
  if (!chart.options.view?.().smooth) return chart.traces.map((trace) => themedTrace(trace, colors));
  const [from, to] = chart.xRange();
  return chart.traces.flatMap((trace) => {
    const measured = themedTrace(trace, colors);
    if (!trace.meta?.smooths) return [measured];
    const { hovertemplate, ...mean } = { ...measured, y: smoothed(trace.x, trace.y, (to - from) * SMOOTHED_SHARE), hoverinfo: "skip" };
    return [{ ...measured, opacity: 0.35, line: { ...measured.line, width: 1 } }, mean];
  });
}

/** A trace to draw: its colour by its role, its look by its kind. */
function themedTrace(trace, colors) {
  const { role, colour, kind } = trace.meta ?? {};
  const color = colors.role(colour ?? role);
  const themed = { ...trace, visible: !hiddenRoles.has(role), showlegend: kind !== "edge" && kind !== "band" };
  switch (kind) {
    case "edge":
      themed.line = { ...trace.line, width: 0, color: "rgba(0,0,0,0)" };
      break;
    case "band":
      themed.line = { ...trace.line, width: 0, color: "rgba(0,0,0,0)" };
      themed.fillcolor = rgba(color, 0.28);
      break;
    case "area":
      themed.line = { ...trace.line, width: 0.5, color };
      themed.fillcolor = rgba(color, 0.9);
      break;
    case "bar":
      themed.marker = { ...trace.marker, color, line: { width: 0 } };
      break;
    case "block":
      themed.marker = { ...trace.marker, color, line: { width: 0.5, color: colors.surface } };
      break;
    case "heat": // shares from 0 to 100, and two codes
      themed.colorscale = [[0, colors.role("block-free")], [1 / 3, colors.role("block-used")], [0.34, colors.role("block-pending")], [0.8, colors.role("block-pending")], [0.81, colors.role("block-rounding")], [1, colors.role("block-rounding")]];
      break;
    case "marker":
      themed.marker = { ...trace.marker, color, line: { width: 1, color: colors.surface } };
      if (trace.textfont !== undefined || trace.mode?.includes("text")) themed.textfont = { ...trace.textfont, color: colors.text };
      break;
    default:
      themed.line = { ...trace.line, color };
  }
  return themed;
}
