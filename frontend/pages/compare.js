/** Compare page: savings of runs against a baseline, their cost in time, and other differences. */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { onAction } from "vramscope/keys.js";
import { subscribe } from "vramscope/live.js";
import { addressNote } from "vramscope/parts/address.js";
import { EACH, RULES, readComparison } from "vramscope/parts/compare_address.js";
import { CompareBar } from "vramscope/parts/compare_bar.js";
import { CompareCharts } from "vramscope/parts/compare_charts.js";
import { hasGroups } from "vramscope/parts/compare_columns.js";
import { comparability, compareTable } from "vramscope/parts/compare_table.js";
import { compareVerdict } from "vramscope/parts/compare_verdict.js";
import { LineDifference } from "vramscope/parts/line_difference.js";
import { Predictions } from "vramscope/parts/predictions.js";
import { RunPicker } from "vramscope/parts/run_picker.js";
import { SettingDifferences, settingName } from "vramscope/parts/setting_differences.js";
import { TechniquePredictions } from "vramscope/parts/technique_predictions.js";
import { problemBanner, snippet } from "vramscope/parts/ui.js";
import { startLines } from "vramscope/parts/welcome.js";
import { wrapRows } from "vramscope/parts/wrapped_rows.js";
import { setQuery } from "vramscope/store.js";

const COLOURS = 7; // same number as figures/peaks_over_steps.py
const REFRESH_MS = 4_000;

class ComparePage {
  stops = [];
  anyRun = null;

  constructor(root) {
    this.root = root;
    document.title = "Compare · vramscope";
    loadPlotly().catch(() => {});
    this.build();
    this.view = readComparison();
    this.load();
    this.stops.push(
      onAction("export", () => this.bar.exportCsv()),
      onAction("axis", () => setQuery({ x: this.view.x === "time" ? null : "time", from: null, to: null })),
      onAction("escape", () => setQuery({ from: null, to: null })),
      onAction("follow", () => setQuery({ from: null, to: null, paused: null })),
    );
  }

  close() {
    this.closed = true;
    for (const stop of this.stops) stop();
    this.stopLive?.();
    this.request?.abort();
    clearTimeout(this.refreshTimer);
    for (const part of [this.charts, this.predictions, this.techniquePredictions, this.sites, this.picker])
      part.close();
  }

  build() {
    this.trouble = h("div");
    const address = addressNote(RULES);
    this.stops.push(address.stop);
    this.picker = new RunPicker({ colourOf, onRuns: (runs) => this.setRuns(runs) });
    this.warnings = h("div");
    this.bar = new CompareBar((error) => fill(this.trouble, problemBanner(error)));
    this.notes = h("span", { class: "muted" });
    this.rows = h("div");
    this.wrap = wrapRows(this.rows);
    this.table = h(
      "section",
      { class: "card compared", hidden: true },
      h(
        "header",
        {},
        h("h2", {}, "Against the baseline"),
        this.notes,
        h("span", { class: "spring" }),
        this.bar.element,
      ),
      this.rows,
    );
    this.settings = new SettingDifferences();
    this.nothing = h("div");
    this.charts = new CompareCharts(
      () => this.view,
      () => this.ordered(),
    );
    this.predictions = new Predictions();
    this.techniquePredictions = new TechniquePredictions();
    this.sites = new LineDifference();
    fill(
      this.root,
      h("div", { class: "page-head" }, h("h1", {}, "Compare")),
      address.element,
      this.trouble,
      this.picker.element,
      this.warnings,
      this.nothing,
      this.table,
      this.settings.element,
      this.techniquePredictions.element,
      this.predictions.element,
      ...this.charts.parts,
      ...this.sites.parts,
    );
  }

  /** Run ids with the baseline first. Figures draw the first run with a thick line. */
  ordered() {
    const { runs, base } = this.view;
    return base ? [base, ...runs.filter((run) => run !== base)] : runs;
  }

  update() {
    const before = this.view;
    this.view = readComparison();
    if (JSON.stringify(before) === JSON.stringify(this.view)) return;
    const same = (name) => JSON.stringify(before[name]) === JSON.stringify(this.view[name]);
    if (!same("runs") || !same("base")) this.load();
    else if (!same("group")) this.load({ charts: false });
    else {
      this.draw();
      this.charts.update(before, this.view);
    }
  }

  ask(signal) {
    const { base, group } = this.view;
    const query = { runs: this.ordered().join(","), base, group: group === EACH ? null : group || null };
    return api.compare(query, signal);
  }

  async load({ charts = true } = {}) {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.picker.draw(this.answer?.rows ?? [], this.ordered());
    if (this.view.runs.length === 0) {
      this.answer = null;
      this.draw();
      this.findAnyRun();
      return;
    }
    try {
      const answer = await this.ask(request.signal);
      if (this.request !== request) return;
      fill(this.trouble);
      this.answer = answer;
      this.draw();
      if (charts) this.charts.reload();
      this.watch();
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401) return;
      this.answer = null;
      fill(this.trouble, problemBanner(error));
      this.draw();
    }
  }

  /** Asks once whether there is a run to choose: without one, the page shows how to make two. */
  async findAnyRun() {
    if (this.anyRun !== null) return;
    try {
      this.anyRun = (await api.runs({ limit: 1 })).runs.length > 0;
      if (!this.closed && !this.anyRun) this.draw();
    } catch {
      // the page then asks to search for one
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
        this.answer = await this.ask();
        this.draw();
        this.charts.reload({ idle: true });
      } catch {
        // retried at the next event
      }
    }, REFRESH_MS);
  }

  draw() {
    const { rows = [], settings = [] } = this.answer ?? {};
    const { all, find, sites, runs } = this.view;
    this.table.hidden = rows.length === 0;
    this.picker.draw(rows, this.ordered());
    fill(this.nothing, runs.length === 0 && nothingChosen(this.anyRun));
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
    if (rows.length > 0) this.drawTable(shown);
    this.settings.draw(settings, rows, { all, find, colourOf });
    this.predictions.show(rows);
    this.techniquePredictions.show(rows);
    this.charts.draw(rows);
    this.sites.show(rows, sites);
  }

  /** Rows of the table: one for each group, or one for each run. */
  tableRows() {
    const { rows = [], together = rows } = this.answer ?? {};
    const { group } = this.view;
    if (group === EACH) return rows;
    return together.map((row) => (row.group === null ? row : { ...row, title: `${settingName(group)} = ${row.group}` }));
  }

  drawTable(rows) {
    const { sort, descending } = this.view;
    const position = new Map(this.answer.rows.map((row, at) => [row.run, at]));
    const pressed = this.rows.contains(document.activeElement) && document.activeElement.dataset.sort;
    const open = new Set([...this.rows.querySelectorAll("details[open]")].map((one) => one.closest("tr").dataset.run));
    const notes = [
      rows.some((row) => row.emulated) && "emulated GPU: timing is not meaningful",
      hasGroups(rows) && "groups: mean and range",
    ].filter(Boolean);
    this.notes.textContent = notes.join("; ");
    const columns = this.bar.draw(this.answer, rows, this.view);
    fill(this.rows, compareTable(rows, { columns, sort, descending, colourOf: (run) => colourOf(position.get(run)) }));
    for (const members of this.rows.querySelectorAll("details"))
      members.open = open.has(members.closest("tr").dataset.run);
    this.wrap();
    if (pressed) [...this.rows.querySelectorAll("[data-sort]")].find((one) => one.dataset.sort === pressed)?.focus();
  }

  setRuns(runs) {
    const base = runs.includes(this.view.base) ? this.view.base : null;
    setQuery({ runs: runs.join(","), base, from: null, to: null });
  }
}

/** Colour of the run at a position; 0 is the baseline. Only the first runs have their own. */
function colourOf(position) {
  if (position === 0) return "var(--role-baseline)";
  return position <= COLOURS ? `var(--role-run-${position - 1})` : "var(--role-unknown)";
}

/** `anyRun`: whether the server has a run; null is unknown. */
function nothingChosen(anyRun) {
  if (anyRun === false)
    return h(
      "section",
      { class: "card empty" },
      h("h2", {}, "No runs yet"),
      h("p", {}, "Train once without a technique and once with it, under two names:"),
      h("div", { class: "narrow" }, snippet(startLines().compared)),
      h("p", { class: "or" }, "More ways to start a run are on the page ", h("a", { href: "/runs" }, "Runs"), "."),
    );
  return h(
    "section",
    { class: "card empty" },
    h("h2", {}, "No runs chosen"),
    h("p", {}, "Search above, or select runs in the ", h("a", { href: "/runs" }, "list of runs"), "."),
  );
}

export const open = (root) => new ComparePage(root);
