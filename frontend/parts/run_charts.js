/** Charts of a run: their figures, their windows, and the live rows that feed them. */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { h } from "vramscope/dom.js";
import { lossScale } from "vramscope/parts/loss_scale.js";
import { isOnCpu } from "vramscope/parts/view_bar.js";

/**
 * Figure, title and options: `wide`; `ownSteps`, a fixed window on a step axis; `summary`, always the whole run;
 * `scale`, a choice of y axes; `only`, a condition on the run and its device: without it the chart would be empty.
 */
const onGpu = (run, place) => !isOnCpu(place);
const CHARTS = [
  { name: "categories", title: "Memory by category, at each step's peak", wide: true, only: onGpu },
  { name: "memory", title: "Allocated and reserved", only: onGpu },
  { name: "fragmentation", title: "Fragmentation: reserved memory", only: onGpu },
  { name: "device", title: "Device memory by owner", wide: true, only: onGpu },
  { name: "step_peaks", title: "Peak of the last 200 steps", ownSteps: 200, only: onGpu },
  { name: "phases", title: "Phases of each step", summary: true },
  { name: "utilization", title: "GPU: utilization, power, temperature", only: onGpu },
  { name: "host", title: "Host memory" },
  { name: "loss", title: "Loss", wide: true, only: (run) => run.loss, scale: lossScale },
];

export class RunCharts {
  elements = new Map(); // name of the figure -> its chart
  hasLoss = false; // a live row has brought one

  /** `page` has `id`, `run`, `view`, `zero`, `running`, `drawsLive`, `newestTime`, `newestStep`, `zoom(range)`. */
  constructor(page) {
    this.page = page;
    for (const spec of CHARTS) {
      const element = this.makeChart(spec);
      if (spec.wide) element.classList.add("wide");
      this.elements.set(spec.name, element);
    }
    this.hideUnknown(page.run, page.place());
    this.element = h("div", { class: "charts" }, [...this.elements.values()]);
  }

  /** Hides the charts that have nothing to draw for this run and device. */
  hideUnknown(run, place) {
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

  /** Fetches charts of samples again on a step axis, where live rows do not extend them: many samples share a step. */
  reloadStepSamples() {
    if (!this.page.drawsLive || this.page.view.x !== "step" || document.hidden) return;
    for (const name of ["memory", "fragmentation", "device", "utilization", "host"])
      if (!this.elements.get(name).request) this.elements.get(name).reload();
  }

  makeChart(spec) {
    const own = Boolean(spec.ownSteps);
    const element = chart({
      title: spec.title,
      file: `${this.page.run.name.replace(/[^\w.-]+/g, "_")}-${spec.name}`,
      load: (signal) => api.figure(this.page.id, spec.name, this.figureQuery(spec), signal),
      live: spec.summary ? null : (message) => this.xOf(message, own ? "step" : this.page.view.x),
      scale: spec.scale,
      view: () => (own ? this.stepsView(spec) : this.commonView()),
      onZoom: spec.summary || own ? null : (range) => this.page.zoom(range),
      peers:
        spec.summary || own
          ? null
          : () =>
              CHARTS.filter((other) => !other.summary && !other.ownSteps).map((other) => this.elements.get(other.name)),
    });
    element.dataset.figure = spec.name;
    return element;
  }

  commonView() {
    const { from, to, last, clock, smooth } = this.page.view;
    return { from, to, last, clock, smooth };
  }

  stepsView(spec) {
    if (this.page.view.x === "step" && this.page.view.from !== null)
      return { from: this.page.view.from, to: this.page.view.to };
    return { last: spec.ownSteps };
  }

  figureQuery(spec) {
    const { x, from, to, last, rank, device } = this.page.view;
    const common = { rank, device, x };
    if (spec.ownSteps) {
      if (x === "step" && from !== null) return { ...common, x: "step", from, to };
      const newest = this.page.newestStep ?? this.page.run.window?.last_step ?? 0;
      return { ...common, x: "step", from: Math.max(0, newest - spec.ownSteps + 1) };
    }
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

  /** x values of live rows of the rank and device in view. Null for other rows. */
  xOf(message, axis) {
    const scalars = message.stream === "scalars"; // scalars belong to a rank, not to a device
    if (message.rank !== this.page.view.rank || (!scalars && message.device !== this.page.view.device)) return null;
    if (axis === "time") return message.columns.time_seconds.map((time) => time - this.page.zero);
    // many samples share a step: reloadStepSamples() fetches those charts instead
    return message.stream === "steps" || scalars ? message.columns.step : null;
  }
}
