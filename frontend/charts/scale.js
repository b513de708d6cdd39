/** Logarithmic or linear y axis of a chart whose figure proposes one and whose reader may choose the other. */

/** True if a logarithmic axis can show at least one value. */
const isLogable = (chart) => chart.traces.some((trace) => trace.y.some((value) => value > 0));

/** "log" or "linear": the reader's choice, or the figure's. Null for charts without a choice. */
export function scaleOf(chart) {
  if (!chart.options.scale || !chart.figure) return null;
  return isLogable(chart) ? (chart.options.scale.chosen() ?? chart.figure.layout.yaxis?.type ?? "linear") : "linear";
}

/** Chooses the other scale. The figure's own one is kept as no choice. */
export function toggleScale(chart) {
  const turned = scaleOf(chart) === "log" ? "linear" : "log";
  chart.options.scale.choose(turned === (chart.figure?.layout.yaxis?.type ?? "linear") ? null : turned);
}

export function drawScale(chart) {
  const { scaleButton } = chart;
  scaleButton.setAttribute("aria-pressed", String(scaleOf(chart) === "log"));
  scaleButton.disabled = !isLogable(chart);
  scaleButton.title = isLogable(chart)
    ? "y axis: logarithmic or linear. Automatic: logarithmic if values span decades."
    : "no value is above zero";
}
