/** Charts of a run: their figures, their windows, and the live rows that feed them. */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { h } from "vramscope/dom.js";
import { memoryStack } from "vramscope/parts/memory_stack.js";
import { lossScale } from "vramscope/parts/loss_scale.js";
import { isOnCpu } from "vramscope/parts/view_bar.js";

/** Numbers that are the loss; they have a chart of their own. */
const LOSSES = new Set(["loss", "backward_loss", "trainer_loss"]);
const logsMetrics = (run, place) =>
  run.ranks.some(({ rank, scalars }) => rank === place.rank && scalars?.some((name) => !LOSSES.has(name)));
const hasOthers = (run, { rank, device }) =>
  (run.other_processes?.some((row) => row.series && row.rank === rank && row.device === device) ||
    (device >= 0 && run.techniques?.some(({ kind }) => kind === "rollout_engine"))) ??
  false;
const onGpu = (run, place) => !isOnCpu(place);
/**
 * Figure, title and options: `wide`; `summary`, always the whole run; `scale`, a choice of y axes; `make`, another chart
 * than chart(); `only`, a condition on the run and its device: without it the chart would be empty.
 */
const CHARTS = [
  { name: "stack", title: "Memory at the peak of each step", wide: true, only: onGpu, make: memoryStack, tail: true, table: ["steps", "All steps"] },
  { name: "processes", title: "Processes on the device", wide: true, only: hasOthers },
  { name: "loss", title: "Loss", wide: true, only: (run) => run.loss, scale: lossScale },
  { name: "metrics", title: "Logged metrics", wide: true, only: logsMetrics },
  { name: "utilization", title: "GPU: utilization, power, temperature", only: onGpu },
  { name: "host", title: "Host memory" },
  { name: "phases", title: "Phases of a step", summary: true, only: (run) => run.steps > 0, table: ["phases", "All steps"] },
];
/** Charts of samples. On a step axis live rows do not extend them: many samples share a step. */
const OF_SAMPLES = ["processes", "utilization", "host"];

export class RunCharts {
  elements = new Map(); // name of the figure -> its chart
  hasLoss = false; // a live row has brought one

  /** `page` has `id`, `run`, `map`, `view`, `zero`, `running`, `drawsLive`, `newestTime`, `newestStep`, `zoom(range)`. */
  constructor(page) {
    this.page = page;
    for (const spec of CHARTS) {
      const element = this.makeChart(spec);
      if (spec.wide) element.classList.add("wide");
      this.elements.set(spec.name, element);
    }
    const [first, ...others] = this.elements.values();
    this.element = h("div", { class: "charts of-a-run" }, first, page.map.element, others);
    this.hideUnknown(page.run, page.place());
  }

  get first() {
    return this.elements.values().next().value;
  }

  /** First chart that is not hidden. */
  get shown() {
    return [...this.elements.values()].find((element) => !element.hidden) ?? null;
  }

  /** Fetches the first chart before it is known to be in sight. Call this before other requests: it takes longest to draw. */
  loadFirst() {
    const { shown } = this;
    if (this.element.hidden || !shown) return;
    shown.visible = true;
    shown.reload();
  }

  /** Hides the charts that have nothing to draw for this run and device: all of them while there is no sample. */
  hideUnknown(run, place) {
    this.element.hidden = !this.page.hasSamples;
    for (const { name, only } of CHARTS)
      if (only) this.elements.get(name).hidden = !only(run, place) && !(name === "loss" && this.hasLoss);
  }

  get(name) {
    return this.elements.get(name);
  }

  /** Passes a live message to all charts. */
  feed(message) {
    if (message.stream === "scalars" && !this.hasLoss) {
      this.hasLoss = true; // the first loss: a visible chart fetches its window
      this.get("loss").hidden = false;
    }
    for (const element of this.elements.values()) element.feed(message);
  }

  /** Fetches the windows again. `zoomOnly`: except for charts that always show the whole run. */
  reload(zoomOnly = false) {
    for (const spec of CHARTS) {
      if (zoomOnly && spec.summary) continue;
      this.elements.get(spec.name).reload();
    }
  }

  /** Draws the present windows again. */
  redraw() {
    for (const element of this.elements.values()) element.redraw();
  }

  /** Fetches charts of samples again on a step axis. */
  reloadStepSamples() {
    if (!this.page.drawsLive || this.page.view.x !== "step" || document.hidden) return;
    for (const name of OF_SAMPLES) if (!this.elements.get(name).request) this.elements.get(name).reload();
  }

  makeChart(spec) {
    const element = (spec.make ?? chart)({
      title: spec.title,
      file: `${this.page.run.name.replace(/[^\w.-]+/g, "_")}-${spec.name}`,
      load: (signal) => api.figure(this.page.id, spec.name, this.figureQuery(spec), signal),
      live: spec.summary ? null : (message) => this.xOf(message, spec.tail),
      tail: spec.tail && ((from, signal) => api.figure(this.page.id, spec.name, this.tailQuery(from), signal)),
      scale: spec.scale,
      download: spec.table && { table: spec.table[0], what: spec.table[1], query: () => ({ run: this.page.id }) },
      view: () => this.commonView(),
      onZoom: spec.summary ? null : (range) => this.page.zoom(range),
      peers: spec.summary
        ? null
        : () => CHARTS.filter((other) => !other.summary).map((other) => this.elements.get(other.name)),
    });
    element.dataset.figure = spec.name;
    return element;
  }

  commonView() {
    const { from, to, last, clock, smooth } = this.page.view;
    return { from, to, last, clock, smooth };
  }

  tailQuery(from) {
    const { rank, device, x } = this.page.view;
    return { rank, device, x, from };
  }

  figureQuery(spec) {
    const { x, from, to, last, rank, device } = this.page.view;
    const common = { rank, device, x };
    // a live chart is drawn twice a second, so it gets fewer points
    const points = Math.max(
      240,
      Math.round(this.elements.get(spec.name).points * (this.page.running && from === null ? 0.7 : 1)),
    );
    if (from !== null) return { ...common, points, from, to };
    if (last) {
      const end =
        x === "time"
          ? (this.page.newestTime ?? this.page.run.window?.last_seconds ?? this.page.zero) - this.page.zero
          : (this.page.newestStep ?? this.page.run.window?.last_step ?? 0);
      return { ...common, points, from: Math.max(0, end - last) };
    }
    return { ...common, points };
  }

  /** x values of live rows of the rank and device in view. Null for other rows. `any`: only whether there are such rows. */
  xOf(message, any) {
    const scalars = message.stream === "scalars"; // scalars belong to a rank, not to a device
    if (message.rank !== this.page.view.rank || (!scalars && message.device !== this.page.view.device)) return null;
    if (any) return scalars ? null : message.columns.time_seconds;
    if (this.page.view.x === "time") return message.columns.time_seconds.map((time) => time - this.page.zero);
    // many samples share a step: reloadStepSamples() fetches those charts instead
    return message.stream === "steps" || scalars ? message.columns.step : null;
  }
}
