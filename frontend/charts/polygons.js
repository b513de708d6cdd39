/**
 * Draws thousands of polygons below Plotly's drawing, one SVG path for each colour.
 *
 * Plotly needs 0.2 s for 2000 polygons at each redraw. Here a path is built once, in axis units. Another window, size
 * or theme only changes its transform.
 */

import { hiddenRoles } from "vramscope/charts/roles.js";
import { svg } from "vramscope/dom.js";

/** x array of a trace -> its path, and the origin of its x values (SVG has too few digits for large numbers). */
const paths = new WeakMap();

export const isPolygons = (trace) => trace.meta?.kind === "polygon";

/** Converts polygons that are separated by gaps to one SVG path. */
export function polygonsPath(x, y, zero) {
  const parts = [];
  let isOpen = false;
  for (let i = 0; i < x.length; i += 1) {
    if (!Number.isFinite(y[i])) {
      if (isOpen) parts.push("Z");
      isOpen = false;
      continue;
    }
    parts.push(`${isOpen ? "L" : "M"}${x[i] - zero},${Math.round(y[i] * 1e5) / 1e5}`);
    isOpen = true;
  }
  return parts.join("") + (isOpen ? "Z" : "");
}

function pathOf({ x, y }) {
  if (!paths.has(x)) {
    const zero = x[0] ?? 0;
    paths.set(x, { zero, path: svg("path", { d: polygonsPath(x, y, zero), "vector-effect": "non-scaling-stroke" }) });
  }
  return paths.get(x);
}

/** Draws these traces in the colours that Plotly would use. */
export function drawPolygons(chart, traces) {
  const shown = traces.filter((trace) => !hiddenRoles.has(trace.meta.role));
  if (!chart.polygons && shown.length === 0) return;
  if (!chart.polygons) {
    const frame = svg("svg", {});
    const layer = svg("svg", { class: "polygons", "aria-hidden": "true" }, frame);
    chart.plot.before(layer);
    chart.polygons = { frame, shown };
  }
  chart.polygons.shown = shown;
  chart.polygons.frame.replaceChildren(
    ...shown.map((trace) => {
      const { path } = pathOf(trace);
      path.setAttribute("fill", trace.fillcolor);
      // Many thin polygons are visible by their borders only. A band has one shape.
      path.setAttribute("stroke", trace.meta.band ? "none" : trace.fillcolor);
      return path;
    }),
  );
  placePolygons(chart);
}

/** Scale of an axis. Plotly rounds positions to hundredths of a pixel: the difference of two neighbours would be 0 of many. */
const pixelsPerUnit = ({ _length: length, range: [from, to] }) => length / (to - from);

/** Aligns the polygons with the current axes. */
export function placePolygons(chart) {
  const { xaxis, yaxis } = chart.plot._fullLayout ?? {};
  if (!chart.polygons || !xaxis || !yaxis) return;
  const { frame, shown } = chart.polygons;
  for (const [name, value] of Object.entries({
    x: xaxis._offset,
    y: yaxis._offset,
    width: xaxis._length,
    height: yaxis._length,
  }))
    frame.setAttribute(name, value);
  const [wide, high] = [pixelsPerUnit(xaxis), -pixelsPerUnit(yaxis)];
  for (const trace of shown) {
    const { path, zero } = pathOf(trace);
    path.setAttribute("transform", `matrix(${wide} 0 0 ${high} ${xaxis.d2p(zero)} ${yaxis.d2p(0)})`);
  }
}
