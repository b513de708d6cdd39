/** Compare page: savings of runs against a baseline, their cost in time, and other differences. */

import { api } from "vramscope/api.js";
import { chart, loadPlotly } from "vramscope/chart.js";
import { copyButton, download, fill, h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { onAction } from "vramscope/keys.js";
import { subscribe } from "vramscope/live.js";
import { addressNote, anything, isNumber, oneOf } from "vramscope/parts/address.js";
import { comparability, compareTable, hasRepeats } from "vramscope/parts/compare_table.js";
import { compareVerdict } from "vramscope/parts/compare_verdict.js";
import { SettingDifferences } from "vramscope/parts/setting_differences.js";
import { lossScale } from "vramscope/parts/loss_scale.js";
import { Predictions } from "vramscope/parts/predictions.js";
import { RunPicker } from "vramscope/parts/run_picker.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { LineDifference } from "vramscope/parts/line_difference.js";
import { TechniquePredictions } from "vramscope/parts/technique_predictions.js";
import { setQuery, store } from "vramscope/store.js";

const MOST_RUNS = 50; // same limit as api/compare.py
const COLOURS = 7; // same number as figures/peaks_over_steps.py

const CHARTS = [
  { name: "peaks_over_steps", title: "Peak allocated of each step", wide: true },
  { name: "peaks_side_by_side", title: "At the highest peak" },
  { name: "memory_against_time", title: "Memory against time" },
  { name: "loss_over_steps", title: "Loss", wide: true, only: (row) => row.loss_source, scale: lossScale },
];

class ComparePage {
  charts = new Map();
  stops = [];

  constructor(root) {
    this.root = root;
    document.title = "Compare · vramscope";
    loadPlotly().catch(() => {});
    this.build();
    this.view = this.readView();
    this.load();
    this.stops.push(
      onAction("export", () => this.exportCsv()),
      onAction("axis", () => setQuery({ x: this.view.x === "time" ? null : "time", from: null, to: null })),
      onAction("escape", () => setQuery({ from: null, to: null })),
      onAction("follow", () => setQuery({ from: null, to: null, paused: null })),
    );
  }

  close() {
    for (const stop of this.stops) stop();
    this.stopLive?.();
    this.request?.abort();
    this.predictions.close();
    this.techniquePredictions.close();
    this.sites.close();
    clearTimeout(this.zooming);
    clearTimeout(this.refreshTimer);
    this.picker.close();
  }

  readView() {
    const { runs = "", base = "", x, from, to, diff, sites = null, find = "", loss, repeats } = store.get().query;
    const ids = [
      ...new Set(
        runs
          .split(",")
          .map((id) => id.trim())
          .filter(Boolean),
      ),
    ].slice(0, MOST_RUNS);
    const numberOf = (text) => (text && Number.isFinite(Number(text)) ? Number(text) : null);
    return {
      runs: ids,
      base: ids.includes(base) ? base : base || ids[0] || null,
      x: x === "time" ? "time" : "step",
      from: numberOf(from),
      to: numberOf(to),
      all: diff === "all",
      sites,
      find,
      loss,
      each: repeats === "each",
    };
  }

  build() {
    this.trouble = h("div");
    this.address = addressNote({
      runs: anything,
      base: anything,
      x: oneOf("time", "step"),
      from: isNumber,
      to: isNumber,
      diff: oneOf("all"),
      sites: anything,
      find: anything,
      loss: oneOf("log", "linear"),
      repeats: oneOf("each"),
    });
    this.stops.push(this.address.stop);
    this.picker = new RunPicker({
      colourOf: (position) => this.colourOf(position),
      onRuns: (runs) => this.setRuns(runs),
    });
    this.warnings = h("div");
    this.table = h("section", { class: "card compared", hidden: true });
    this.grid = h("div", { class: "charts", hidden: true });
    this.settings = new SettingDifferences();
    this.nothing = h("div");
    for (const spec of CHARTS) {
      const element = chart({
        title: spec.title,
        file: `compare-${spec.name}`,
        load: (signal) =>
          api.compareFigure(
            spec.name,
            {
              runs: this.ordered().join(","),
              base: this.view.base,
              x: this.view.x,
              ...(spec.wide ? { from: this.view.from, to: this.view.to } : {}),
            },
            signal,
          ),
        live: null,
        scale: spec.scale,
        view: () => (spec.wide ? { from: this.view.from, to: this.view.to } : {}),
        onZoom: spec.wide
          ? (range) =>
              setQuery(
                range
                  ? { from: Number(Math.max(0, range.from).toFixed(2)), to: Number(range.to.toFixed(2)) }
                  : { from: null, to: null },
              )
          : null,
      });
      if (spec.wide) element.classList.add("wide");
      element.dataset.figure = spec.name;
      this.charts.set(spec.name, element);
    }
    this.predictions = new Predictions();
    this.techniquePredictions = new TechniquePredictions();
    this.sites = new LineDifference();
    this.axis = h("div", { class: "view-bar" });
    this.grid.append(...this.charts.values());
    fill(
      this.root,
      h("div", { class: "page-head" }, h("h1", {}, "Compare")),
      this.address.element,
      this.trouble,
      this.picker.element,
      this.warnings,
      this.nothing,
      this.table,
      this.techniquePredictions.element,
      this.predictions.element,
      this.axis,
      this.grid,
      ...this.sites.parts,
      this.settings.element,
    );
    this.table.style.marginBottom = "14px";
  }

  /** Run ids with the baseline first. Figures draw the first run with a thick line. */
  ordered() {
    const { runs, base } = this.view;
    return base ? [base, ...runs.filter((run) => run !== base)] : runs;
  }

  update() {
    const before = this.view;
    this.view = this.readView();
    if (JSON.stringify(before) === JSON.stringify(this.view)) return;
    const same = before.runs.join() === this.view.runs.join() && before.base === this.view.base;
    if (!same) {
      this.load();
      return;
    }
    this.draw();
    if (before.loss !== this.view.loss) this.charts.get("loss_over_steps").redraw();
    if (before.x !== this.view.x || before.from !== this.view.from || before.to !== this.view.to) {
      clearTimeout(this.zooming);
      this.zooming = setTimeout(() => CHARTS.forEach((spec) => spec.wide && this.charts.get(spec.name).reload()), 150);
    }
  }

  async load() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.picker.draw(this.answer?.rows ?? [], this.ordered());
    if (this.view.runs.length === 0) {
      this.answer = null;
      this.draw();
      return;
    }
    try {
      const answer = await api.compare({ runs: this.ordered().join(","), base: this.view.base }, request.signal);
      if (this.request !== request) return;
      fill(this.trouble);
      this.answer = answer;
      this.draw();
      for (const element of this.charts.values()) element.reload();
      this.watch();
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) return;
      this.answer = null;
      fill(this.trouble, problemBanner(error));
      this.draw();
    }
  }

  /** Compares again, at most every few seconds, while a run changes. */
  watch() {
    this.stopLive?.();
    const ids = new Set(this.answer.rows.map((row) => row.run));
    this.stopLive = subscribe([], ({ event, data }) => {
      if (event === "resync" || (event === "run" && ids.has(data.run_id))) this.refreshSoon();
    });
  }

  refreshSoon() {
    if (this.refreshTimer) return;
    this.refreshTimer = setTimeout(async () => {
      this.refreshTimer = null;
      if (document.hidden) return;
      try {
        this.answer = await api.compare({ runs: this.ordered().join(","), base: this.view.base });
        this.draw();
        for (const element of this.charts.values()) if (!element.request) element.reload();
      } catch {
        // retried at the next event
      }
    }, 4_000);
  }

  draw() {
    const rows = this.answer?.rows ?? [];
    const some = rows.length > 0;
    this.table.hidden = this.grid.hidden = !some;
    for (const spec of CHARTS) this.charts.get(spec.name).hidden = Boolean(spec.only && !rows.some(spec.only));
    this.picker.draw(this.answer?.rows ?? [], this.ordered());
    fill(
      this.nothing,
      this.view.runs.length === 0 &&
        h(
          "section",
          { class: "card empty" },
          h("h2", {}, "No runs chosen"),
          h("p", {}, "Search above, or select runs in the ", h("a", { href: "/runs" }, "list of runs"), "."),
        ),
    );
    const shown = this.tableRows();
    const weak = comparability(shown);
    fill(
      this.warnings,
      compareVerdict(shown),
      weak &&
        h(
          "div",
          { class: "banner warn" },
          h("strong", {}, shown.length === 1 ? "Caution." : "Not fully comparable."),
          h("span", {}, weak),
        ),
    );
    if (some) this.drawTable(shown);
    this.predictions.show(rows);
    this.techniquePredictions.show(rows);
    this.sites.show(rows, this.view.sites);
    this.drawAxis(some);
    this.settings.draw(this.answer?.settings ?? [], rows, {
      all: this.view.all,
      find: this.view.find,
      colourOf: (position) => this.colourOf(position),
    });
  }

  /** Rows of the table: one for each configuration (repeats grouped), or one for each run. */
  tableRows() {
    const { rows = [], together = rows } = this.answer ?? {};
    return this.view.each ? rows : together;
  }

  drawAxis(some) {
    const { x, from, to } = this.view;
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

  colourOf(position) {
    return position === 0 ? "var(--role-baseline)" : `var(--role-run-${(position - 1) % COLOURS})`;
  }

  setRuns(runs) {
    setQuery({
      runs: runs.join(","),
      base: runs.includes(this.view.base) ? this.view.base : null,
      from: null,
      to: null,
    });
  }

  drawTable(rows) {
    const repeated = hasRepeats(this.answer.together ?? []);
    const { each } = this.view;
    const press = (label, value) =>
      h(
        "button",
        {
          type: "button",
          "aria-pressed": String(each === value),
          onclick: () => setQuery({ repeats: value ? "each" : null }),
        },
        label,
      );
    const position = new Map(this.answer.rows.map((row, i) => [row.run, i]));
    fill(
      this.table,
      h(
        "header",
        {},
        h("h2", {}, "Against the baseline"),
        h(
          "span",
          { class: "muted" },
          `peaks in MiB; change: difference to the baseline’s peak in the column before${rows.some((row) => row.emulated) ? "; emulated GPU: timing is not meaningful" : ""}${hasRepeats(rows) ? "; repeats: means" : ""}`,
        ),
        h("span", { class: "spring" }),
        repeated &&
          h(
            "div",
            { class: "segmented", role: "group", "aria-label": "Repeats" },
            press("Group repeats", false),
            press("Every run", true),
          ),
        copyButton("Copy link", () => this.permanentLink(), {
          title: "Contains run ids. Stays valid when runs are renamed.",
        }),
        copyButton("Copy Markdown", () => api.compareTable(this.tableQuery("markdown"))),
        copyButton("Copy LaTeX", () => api.compareTable(this.tableQuery("latex"))),
        h("button", { class: "button small", type: "button", onclick: () => this.exportCsv() }, "CSV"),
      ),
      compareTable(rows, (run) => this.colourOf(position.get(run))),
    );
  }

  /** Query of an exported table. It uses ids, because a name refers to the newest run of that name. */
  tableQuery(format) {
    const ids = this.answer.rows.map((row) => row.run);
    return { runs: ids.join(","), base: ids[0], format, repeats: this.view.each ? "each" : null };
  }

  permanentLink() {
    const { runs, base } = this.tableQuery("");
    const link = new URL("/compare", location.origin);
    for (const [name, value] of Object.entries({ ...store.get().query, runs, base }))
      link.searchParams.set(name, value);
    return link.href.replaceAll("%2C", ",");
  }

  async exportCsv() {
    if (!this.answer) return;
    try {
      download("vramscope-compare.csv", await api.compareTable(this.tableQuery("csv")), "text/csv");
    } catch (error) {
      fill(this.trouble, problemBanner(error));
    }
  }
}

export const open = (root) => new ComparePage(root);
