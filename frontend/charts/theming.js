/** Applies the colours of the theme and the ranges of the view to a figure. The figure's data stay unchanged. */

import { count } from "vramscope/format.js";
import { hiddenRoles } from "vramscope/charts/roles.js";
import { scaleOf } from "vramscope/charts/scale.js";
import { clockTicks, closeRange, logRange, logTicks, smoothed, bandOutlines, timeTicks } from "vramscope/series.js";
import { rgba } from "vramscope/theme.js";

/** Below this width, labels beside points would overlap. Hovering and the legend show them instead. */
const NARROW = 440;
const LETTER_PX = 5.8; // width of a letter at a font size of 11 pixels
const DIGIT_PX = 7; // width of a digit at a font size of 12 pixels
const COARSE = matchMedia("(pointer: coarse)");

/** Layout to draw with. */
export function themedLayout(chart, colors) {
  const source = chart.figure.layout;
  const layout = { ...source, template: "none" };
  layout.font = { ...(source.font ?? {}), family: colors.font, size: 12, color: colors.muted };
  layout.paper_bgcolor = "rgba(0,0,0,0)";
  layout.plot_bgcolor = "rgba(0,0,0,0)";
  layout.hoverlabel = {
    bgcolor: colors.surface,
    bordercolor: colors.line,
    font: { family: colors.font, size: 12, color: colors.text },
  };
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
  if (kind === "series") layout.margin = { ...source.margin, r: rightMargin(chart, layout.xaxis, to) };
  // The label of a line is at its start, unless a vertical mark would cross it there.
  const mark = chart.options.mark?.(chart);
  const place = mark < (from + to) / 2 ? { textposition: "end" } : {};
  layout.shapes = (source.shapes ?? []).map((shape) => ({
    ...shape,
    line: { ...(shape.line ?? {}), color: colors.role(shape.name ?? "capacity") },
    label: shape.label && { ...shape.label, ...place, font: { ...(shape.label.font ?? {}), color: colors.muted } },
  }));
  layout.annotations = (source.annotations ?? []).map((note) => ({
    ...note,
    font: { ...(note.font ?? {}), color: colors.muted },
    bgcolor: rgba(colors.surface, 0.75), // a line may pass behind it
  }));
  return layout;
}

/** Right margin in which half of the longest label fits, at the end of the axis. The same while the last label moves. */
function rightMargin(chart, { ticktext: texts }, to) {
  const longest = Math.max(...(texts ?? [count(Math.floor(to))]).map((text) => text.length), 0);
  return Math.max(chart.figure.layout.margin?.r ?? 0, Math.ceil((longest * DIGIT_PX) / 2));
}

function themedAxis(chart, key, source, kind, from, to, colors) {
  const axis = {
    ...source,
    gridcolor: colors.grid,
    linecolor: colors.line,
    zerolinecolor: colors.line,
    tickcolor: colors.line,
  };
  axis.tickfont = { ...(source.tickfont ?? {}), color: colors.muted };
  if (key.startsWith("x") && source.nticks && chart.plot.clientWidth < NARROW) axis.nticks = Math.ceil(source.nticks / 2);
  if (kind !== "series") return axis;
  if (key.startsWith("x")) {
    Object.assign(axis, { spikecolor: colors.muted, spikethickness: 1, spikedash: "dash", spikemode: "across" });
    axis.range = [from, to];
    axis.autorange = false;
    if (chart.figure.layout.meta?.x === "time") {
      const most = Math.max(2, Math.floor((chart.plot.clientWidth || 600) / 90));
      const onClock = chart.options.view?.().clock;
      const ticks = onClock
        ? clockTicks(from, to, chart.figure.layout.meta.x0_seconds, most)
        : timeTicks(from, to, most);
      Object.assign(axis, { tickmode: "array", tickvals: ticks.values, ticktext: ticks.texts });
      axis.title = { ...source.title, text: onClock ? "time of day" : "time since start" };
    }
    return axis;
  }
  axis.fixedrange = true;
  if (source.autorange === false && source.range) return axis;
  if (key === "yaxis" && scaleOf(chart)) {
    axis.type = scaleOf(chart);
    if (scaleOf(chart) === "log") return Object.assign(axis, logAxis(chart, from, to));
  }
  const fromZero = source.rangemode !== "normal";
  const top = highestOn(chart, key.replace("axis", ""), from, to, fromZero);
  axis.autorange = false;
  if (!fromZero) {
    // Memory of the first steps only would dominate the scale. `settled` says from where on the figure is steady.
    const since = Math.max(
      from,
      (chart.options.view?.().from ?? null) === null ? (chart.figure.layout.meta?.settled ?? from) : from,
    );
    axis.range = closeRange(lowestOn(chart, key.replace("axis", ""), since, to), top);
    return axis;
  }
  const capacity = key === "yaxis" ? chart.figure.layout.meta?.capacity : null;
  const least = source.autorangeoptions?.include?.at(-1) ?? 0; // counts keep integer ticks
  let ceiling = Math.max(top || 1, least) * 1.07;
  // The capacity is in view once half of it is in use. Before that, it would flatten the data.
  if (capacity && top > capacity * 0.5) ceiling = Math.max(ceiling, capacity * 1.12);
  axis.range = [0, ceiling];
  return axis;
}

/** Range and ticks of a logarithmic axis around the values above zero. */
function logAxis(chart, from, to) {
  const top = highestOn(chart, "y", from, to, false);
  const range = logRange(lowestOn(chart, "y", from, to, 0), top > 0 ? top : 1);
  const { values, texts } = logTicks(
    range[0],
    range[1],
    Math.max(3, Math.floor((chart.plot.clientHeight || 240) / 34)),
  );
  return { autorange: false, range, tickmode: "array", tickvals: values, ticktext: texts };
}

const isHidden = (chart, trace) => hiddenRoles.has(trace.meta?.role) || Boolean(chart.options.isFolded?.(trace));

/** Highest value in view. `fromZero`: at least 0, for axes that include zero. */
function highestOn(chart, axis, from, to, fromZero = true) {
  let top = fromZero ? 0 : -Infinity;
  const stacks = new Map();
  for (const trace of chart.traces) {
    if ((trace.yaxis ?? "y") !== axis || isHidden(chart, trace)) continue;
    const { x, y } = trace;
    if (trace.stackgroup || (trace.type === "bar" && chart.figure.layout.barmode === "stack")) {
      x.forEach((at, i) => {
        if (at >= from && at <= to && y[i] > 0) stacks.set(at, (stacks.get(at) ?? 0) + y[i]);
      });
    } else {
      for (let i = 0; i < x.length; i += 1)
        if (x[i] >= from && x[i] <= to && Number.isFinite(y[i]) && y[i] > top) top = y[i];
    }
  }
  for (const sum of stacks.values()) if (sum > top) top = sum;
  return Number.isFinite(top) ? top : 0;
}

/** Lowest value in view that is larger than `above`. */
function lowestOn(chart, axis, from, to, above = -Infinity) {
  let bottom = Infinity;
  for (const trace of chart.traces) {
    if ((trace.yaxis ?? "y") !== axis || isHidden(chart, trace)) continue;
    const { x, y } = trace;
    for (let i = 0; i < x.length; i += 1)
      if (x[i] >= from && x[i] <= to && Number.isFinite(y[i]) && y[i] < bottom && y[i] > above) bottom = y[i];
  }
  return Number.isFinite(bottom) ? bottom : 0;
}

/** Smoothing takes the mean over this share of the window in view. */
export const SMOOTHED_SHARE = 0.02;

/** Traces to draw. With smoothing, the measured line stays behind its mean, and hovering shows measured values. */
export function themedTraces(chart, colors) {
  const narrow = chart.plot.clientWidth < NARROW;
  const traces =
    (chart.figure.layout.meta?.kind ?? "series") === "series"
      ? visiblePoints(chart).filter((trace) => !chart.options.isFolded?.(trace))
      : chart.traces.map((trace) => (trace.meta?.kind === "box" ? fittingLabels(chart, trace) : trace));
  const shown = scaleOf(chart) === "log" ? traces.map(positiveOnly) : traces;
  const drawn = shown.map((trace, i) => (trace.meta?.kind === "band" ? bandOf(shown[i - 1], trace) : trace));
  if (scaleOf(chart) === "log") drawn.push(...footMarkers(chart));
  if (!chart.options.view?.().smooth) return drawn.map((trace) => themedTrace(trace, colors, narrow));
  const [from, to] = chart.xRange();
  return drawn.flatMap((trace) => {
    const measured = themedTrace(trace, colors, narrow);
    if (!trace.meta?.smooths) return [measured];
    const { hovertemplate, ...mean } = {
      ...measured,
      y: smoothed(trace.x, trace.y, (to - from) * SMOOTHED_SHARE),
      hoverinfo: "skip",
    };
    return [{ ...measured, opacity: 0.35, line: { ...measured.line, width: 1 } }, mean];
  });
}

/** Removes labels that do not fit into their boxes: Python assumes a wide chart, and Plotly would let them overflow. */
function fittingLabels(chart, trace) {
  const [from, to] = chart.figure.layout.xaxis?.range ?? [0, 0];
  const perUnit = chart.plot.clientWidth / (to - from);
  if (!Number.isFinite(perUnit) || !Array.isArray(trace.text)) return trace;
  return {
    ...trace,
    text: trace.text.map((words, i) => (words.length * LETTER_PX <= trace.x[i] * perUnit ? words : "")),
  };
}

/**
 * Makes single points visible, which a line or an area would not show: as a dot, or as flat steps if no trace has more
 * than one point.
 */
function visiblePoints(chart) {
  const flat = chart.traces.every((trace) => trace.x.length <= 1);
  return chart.traces.map((trace) => {
    if (trace.x.length !== 1 || !["line", "area", "edge", "band"].includes(trace.meta?.kind)) return trace;
    const [[x], [y]] = [trace.x, trace.y];
    if (flat) return { ...trace, x: [x - 0.25, x + 0.25], y: [y, y] };
    return trace.meta.kind === "line"
      ? { ...trace, mode: "lines+markers", marker: { size: 6, color: undefined } }
      : trace;
  });
}

const isBelow = (value) => Number.isFinite(value) && value <= 0;

/** Copy of a trace without the values that a logarithmic axis cannot show. */
function positiveOnly(trace) {
  return trace.y.some(isBelow) ? { ...trace, y: trace.y.map((value) => (isBelow(value) ? null : value)) } : trace;
}

/** Markers at the foot of a logarithmic axis, for values that it cannot show. Hovering shows the value. */
function footMarkers(chart) {
  const foot = 10 ** logAxis(chart, ...chart.xRange()).range[0];
  return chart.traces.flatMap((trace) => {
    const { kind, label, role, colour } = trace.meta ?? {};
    const at = kind === "line" || kind === "marker" ? trace.y.flatMap((value, i) => (isBelow(value) ? [i] : [])) : [];
    if (at.length === 0) return [];
    const measured = kind === "line" && {
      mode: "markers",
      marker: { symbol: "triangle-down", size: 8 },
      hovertemplate: `%{customdata:.4g} (not above zero)<extra>${trace.name}</extra>`,
    };
    return [
      {
        ...trace,
        ...measured,
        x: at.map((i) => trace.x[i]),
        y: at.map(() => foot),
        customdata: at.map((i) => trace.y[i]),
        cliponaxis: false,
        meta: { role, colour, label, kind: "marker" },
      },
    ];
  });
}

/** Band above an edge. Each known part becomes its own shape, because Plotly would join the ends of gaps. */
function bandOf(edge, band) {
  if (band.y.every(Number.isFinite)) return band;
  return { ...band, ...bandOutlines(band.x, edge.y, band.y), fill: "toself" };
}

/** Styles a trace: its colour by its role, its style by its kind. */
function themedTrace(trace, colors, narrow) {
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
      themed.marker = { ...trace.marker, color, line: { width: trace.meta.hatched ? 1 : 0, color } }; // hatched bars have an outline
      break;
    case "block":
      themed.marker = { ...trace.marker, color, line: { width: 0.5, color: colors.surface } };
      break;
    case "polygon":
      themed.fillcolor = rgba(color, trace.meta.band ? 0.5 : 0.68); // a band is many small ones
      break;
    case "outline":
      themed.line = { ...trace.line, width: 2, color };
      break;
    case "span": // a ruler with text on it
      themed.marker = { ...trace.marker, color: rgba(color, 0.3), line: { width: 0.5, color: colors.surface } };
      themed.textfont = { ...trace.textfont, color: colors.text, size: 11 };
      break;
    case "box":
      themed.marker = { ...trace.marker, color, line: { width: 0.5, color: colors.surface } };
      themed.textfont = { ...trace.textfont, color: colors.text, size: 11 };
      break;
    case "heat": // percentages, and two codes above 100
      themed.colorscale = [
        [0, colors.role("block-free")],
        [1 / 3, colors.role("block-used")],
        [0.34, colors.role("block-pending")],
        [0.8, colors.role("block-pending")],
        [0.81, colors.role("block-rounding")],
        [1, colors.role("block-rounding")],
      ];
      break;
    case "marker":
      themed.marker = { ...trace.marker, color, line: { width: 1, color: colors.surface } };
      if (trace.mode === "markers+text" && narrow) themed.mode = "markers";
      if (trace.textfont !== undefined || trace.mode?.includes("text"))
        themed.textfont = { ...trace.textfont, color: colors.text };
      break;
    default:
      themed.line = { ...trace.line, color };
  }
  return themed;
}
