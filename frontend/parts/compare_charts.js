/** Charts of compared runs, and the choice of their axis. */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { lossScale } from "vramscope/parts/loss_scale.js";
import { setQuery } from "vramscope/store.js";

const SETTLED_MS = 150;
const FEW_BARS = 12; // more need the whole width

const CHARTS = [
  { name: "peaks_over_steps", title: "Peak allocated of each step", wide: true },
  { name: "peaks_side_by_side", title: "At the highest peak" },
  { name: "memory_against_time", title: "Memory against time" },
  { name: "loss_over_steps", title: "Loss", wide: true, only: (row) => row.loss_source, scale: lossScale },
];

export class CompareCharts {
  charts = new Map();

  /** `viewOf()`: view of the URL. `ordered()`: run ids, the baseline first. */
  constructor(viewOf, ordered) {
    this.viewOf = viewOf;
    this.ordered = ordered;
    this.axis = h("div", { class: "view-bar" });
    this.grid = h("div", { class: "charts", hidden: true });
    for (const spec of CHARTS) this.charts.set(spec.name, this.make(spec));
    this.grid.append(...this.charts.values());
    this.parts = [this.axis, this.grid];
  }

  close() {
    clearTimeout(this.settling);
  }

  make(spec) {
    const range = () => (spec.wide ? { from: this.viewOf().from, to: this.viewOf().to } : {});
    const zoom = (to) =>
      setQuery(
        to
          ? { from: Number(Math.max(0, to.from).toFixed(2)), to: Number(to.to.toFixed(2)) }
          : { from: null, to: null },
      );
    const element = chart({
      title: spec.title,
      file: `compare-${spec.name}`,
      load: (signal) => {
        const { base, x } = this.viewOf();
        return api.compareFigure(spec.name, { runs: this.ordered().join(","), base, x, ...range() }, signal);
      },
      live: null,
      scale: spec.scale,
      view: range,
      onZoom: spec.wide ? zoom : null,
    });
    if (spec.wide) element.classList.add("wide");
    element.dataset.figure = spec.name;
    return element;
  }

  /** Loads all charts again. `idle`: only those that wait for no answer. */
  reload({ idle = false } = {}) {
    for (const element of this.charts.values()) if (!idle || !element.request) element.reload();
  }

  /** Follows a change of the view. */
  update(before, view) {
    if (before.loss !== view.loss) this.charts.get("loss_over_steps").redraw();
    if (before.x === view.x && before.from === view.from && before.to === view.to) return;
    clearTimeout(this.settling);
    this.settling = setTimeout(
      () => CHARTS.forEach((spec) => spec.wide && this.charts.get(spec.name).reload()),
      SETTLED_MS,
    );
  }

  /** Shows the charts that these rows have. */
  draw(rows) {
    this.grid.hidden = rows.length === 0;
    for (const spec of CHARTS) this.charts.get(spec.name).hidden = Boolean(spec.only && !rows.some(spec.only));
    this.charts.get("peaks_side_by_side").classList.toggle("wide", rows.length > FEW_BARS);
    this.charts.get("memory_against_time").classList.toggle("wide", rows.length > FEW_BARS);
    this.drawAxis(rows.length > 0);
  }

  drawAxis(some) {
    const { x, from, to } = this.viewOf();
    const press = (label, value) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(x === value),
          onclick: () => setQuery({ x: value === "step" ? null : value, from: null, to: null }),
        },
        label,
      );
    fill(
      this.axis,
      some && [
        h("span", { class: "spring" }),
        from !== null &&
          h(
            "button",
            { class: "chip zoom-chip", type: "button", onclick: () => setQuery({ from: null, to: null }) },
            `${x === "step" ? "steps " : ""}${count(from)} – ${count(to)}${x === "time" ? " s" : ""}  ✕`,
          ),
        h(
          "div",
          { class: "segmented", role: "group", "aria-label": "Axis" },
          press("Steps", "step"),
          press("Time", "time"),
        ),
      ],
    );
  }
}
