/** Runs side by side: what each saves against the baseline, what that costs in time, and what else differs. */

import { api } from "vramscope/api.js";
import { chart, loadPlotly } from "vramscope/chart.js";
import { copyButton, download, fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown, percent, ratio, seconds, signedPercent } from "vramscope/format.js";
import { onAction } from "vramscope/keys.js";
import { subscribe } from "vramscope/live.js";
import { delta, known, meter, problemBanner } from "vramscope/parts/pieces.js";
import { stateBadge } from "vramscope/parts/state.js";
import { toCsv, toMarkdown } from "vramscope/series.js";
import { setQuery, store } from "vramscope/store.js";

const MOST_RUNS = 24;
const COLOURS = 7; // as many as figures/peaks_over_steps.py

const CHARTS = [
  { name: "peaks_over_steps", title: "Peak allocated of each step", wide: true },
  { name: "peaks_side_by_side", title: "At the highest peak" },
  { name: "memory_against_time", title: "Memory against time" },
];

class ComparePage {
  charts = new Map();
  stops = [];
  rows = new Map(); // run_id -> row of the runs list

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
      onAction("follow", () => setQuery({ from: null, to: null })),
    );
  }

  close() {
    for (const stop of this.stops) stop();
    this.stopLive?.();
    this.request?.abort();
    clearTimeout(this.zooming);
    clearTimeout(this.again);
    clearTimeout(this.typing);
  }

  readView() {
    const { runs = "", base = "", x, from, to, diff } = store.get().query;
    const ids = [...new Set(runs.split(",").map((id) => id.trim()).filter(Boolean))].slice(0, MOST_RUNS);
    const numberOf = (text) => (text && Number.isFinite(Number(text)) ? Number(text) : null);
    return { runs: ids, base: ids.includes(base) ? base : (base || ids[0] || null), x: x === "time" ? "time" : "step", from: numberOf(from), to: numberOf(to), all: diff === "all" };
  }

  build() {
    this.trouble = h("div");
    this.picker = h("div", { class: "picker" });
    this.warnings = h("div");
    this.table = h("section", { class: "card", hidden: true });
    this.grid = h("div", { class: "charts", hidden: true });
    this.differences = h("section", { class: "card", hidden: true });
    this.nothing = h("div");
    for (const spec of CHARTS) {
      const element = chart({
        title: spec.title,
        file: `compare-${spec.name}`,
        load: (signal) => api.compareFigure(spec.name, { runs: this.ordered().join(","), base: this.view.base, x: this.view.x, ...(spec.wide ? { from: this.view.from, to: this.view.to } : {}) }, signal),
        live: null,
        view: () => (spec.wide ? { from: this.view.from, to: this.view.to } : {}),
        onZoom: spec.wide ? (range) => setQuery(range ? { from: Number(Math.max(0, range.from).toFixed(2)), to: Number(range.to.toFixed(2)) } : { from: null, to: null }) : null,
      });
      if (spec.wide) element.classList.add("wide");
      element.dataset.figure = spec.name;
      this.charts.set(spec.name, element);
    }
    this.axis = h("div", { class: "view-bar" });
    this.grid.append(...this.charts.values());
    fill(this.root, h("div", { class: "page-head" }, h("h1", {}, "Compare")), this.trouble, this.picker, this.warnings, this.nothing, this.table, this.axis, this.grid, this.differences);
    this.table.style.marginBottom = "14px";
    this.differences.style.marginTop = "14px";
  }

  /** The baseline first: figures give it the thick line. */
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
    if (before.x !== this.view.x || before.from !== this.view.from || before.to !== this.view.to) {
      clearTimeout(this.zooming);
      this.zooming = setTimeout(() => this.charts.get("peaks_over_steps").reload(), 150);
    }
  }

  async load() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.drawPicker();
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

  /** Runs that still go: compare again every few seconds. */
  watch() {
    this.stopLive?.();
    const ids = new Set(this.answer.rows.map((row) => idOf(row)));
    this.stopLive = subscribe([], ({ event, data }) => {
      if (event === "resync" || (event === "run" && ids.has(data.run_id))) this.soon();
    });
  }

  soon() {
    if (this.again) return;
    this.again = setTimeout(async () => {
      this.again = null;
      if (document.hidden) return;
      try {
        this.answer = await api.compare({ runs: this.ordered().join(","), base: this.view.base });
        this.draw();
        for (const element of this.charts.values()) if (!element.request) element.reload();
      } catch {
        // asked again with the next event
      }
    }, 4_000);
  }

  draw() {
    const rows = this.answer?.rows ?? [];
    const some = rows.length > 0;
    this.table.hidden = this.grid.hidden = !some;
    this.drawPicker();
    fill(this.nothing, this.view.runs.length === 0 && h("section", { class: "card empty" }, h("h2", {}, "No runs chosen"), h("p", {}, "Search above, or tick runs in the ", h("a", { href: "/runs" }, "list of runs"), ".")));
    fill(this.warnings, some && (this.answer.warnings ?? []).length > 0 && h("div", { class: "banner warn" }, h("strong", {}, "Not quite comparable."), h("span", {}, this.answer.warnings.map(warningText).join(" "))));
    if (some) this.drawTable(rows);
    this.drawAxis(some);
    this.drawDifferences(some ? (this.answer.differences ?? {}) : {}, rows);
  }

  drawAxis(some) {
    const { x, from, to } = this.view;
    const press = (label, value) => h("button", { type: "button", "aria-pressed": String(x === value), onclick: () => setQuery({ x: value === "step" ? null : value, from: null, to: null }) }, label);
    fill(this.axis, some && [h("span", { class: "spring" }), from !== null && h("button", { class: "chip zoom-chip", type: "button", onclick: () => setQuery({ from: null, to: null }) }, `${x === "step" ? "steps " : ""}${count(from)} – ${count(to)}${x === "time" ? " s" : ""}  ✕`), h("div", { class: "segmented", role: "group", "aria-label": "Axis" }, press("Steps", "step"), press("Time", "time"))]);
  }

  colourOf(position) {
    return position === 0 ? "var(--role-baseline)" : `var(--role-run-${(position - 1) % COLOURS})`;
  }

  drawPicker() {
    const rows = this.answer?.rows ?? [];
    const names = new Map(rows.map((row) => [idOf(row), nameOf(row)]));
    const chips = this.ordered().map((run, position) => {
      const row = rows.find((candidate) => idOf(candidate) === run || nameOf(candidate) === run);
      return h(
        "span",
        { class: "picked" },
        h("span", { class: "swatch marker", style: { "--swatch": this.colourOf(position) } }),
        h("a", { class: "legend-name", href: `/runs/${encodeURIComponent(run)}`, title: row ? nameOf(row) : run }, row ? nameOf(row) : (names.get(run) ?? run)),
        position === 0 ? h("span", { class: "chip baseline" }, "baseline") : h("button", { type: "button", title: "make it the baseline of this comparison", onclick: () => setQuery({ base: run }) }, "set baseline"),
        h("button", { type: "button", "aria-label": `take ${row ? nameOf(row) : run} out`, onclick: () => this.setRuns(this.view.runs.filter((other) => other !== run)) }, "✕"),
      );
    });
    if (!this.search) {
      this.search = h("input", { type: "search", "data-search": true, list: "runs-to-add", placeholder: "Add a run  ( / )", "aria-label": "Add a run" });
      this.options = h("datalist", { id: "runs-to-add" });
      this.search.addEventListener("input", () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.offer(), 150);
      });
      this.search.addEventListener("keydown", (event) => event.key === "Enter" && this.add());
      this.search.addEventListener("focus", () => this.offer());
    }
    if (!this.chips) {
      this.chips = h("span", { class: "picker" });
      this.chips.style.margin = "0";
      fill(this.picker, this.chips, this.search, this.options);
    }
    fill(this.chips, chips);
  }

  async offer() {
    const text = this.search.value.trim();
    const exact = this.offered?.find((row) => label(row) === text);
    if (exact) {
      this.search.value = "";
      this.setRuns([...this.view.runs, exact.run_id]);
      return;
    }
    try {
      this.offered = (await api.runs({ query: text, limit: 20 })).runs.filter((row) => !this.view.runs.includes(row.run_id));
      fill(this.options, this.offered.map((row) => h("option", { value: label(row) }, `${row.state}, ${bytes(row.peak_allocated_bytes)}`)));
    } catch {
      // nothing to offer
    }
  }

  async add() {
    const text = this.search.value.trim();
    if (!text) return;
    const found = this.offered?.find((row) => label(row) === text) ?? this.offered?.[0];
    this.search.value = "";
    if (found) this.setRuns([...this.view.runs, found.run_id]);
  }

  setRuns(runs) {
    setQuery({ runs: runs.join(","), base: runs.includes(this.view.base) ? this.view.base : null, from: null, to: null });
  }

  drawTable(rows) {
    const base = rows[0];
    const head = ["Run", "State", "Techniques", "Peak allocated", "vs baseline", "Peak reserved", "vs baseline", "Step time", "time ratio", "Fragm.", "Steps"];
    const optional = (field) => rows.some((row) => row[field] !== undefined);
    const show = [true, optional("state"), rows.some((row) => row.techniques?.length), true, rows.length > 1, true, rows.length > 1, optional("step_seconds_median"), rows.length > 1, optional("fragmentation_fraction"), optional("steps")];
    const cells = (row, position) => [
      h("th", { class: "run", scope: "row" }, h("span", { class: "name-line" }, h("span", { class: "swatch marker", style: { "--swatch": this.colourOf(position) } }), h("a", { href: `/runs/${encodeURIComponent(idOf(row))}` }, nameOf(row)), position === 0 && rows.length > 1 && h("span", { class: "chip baseline" }, "baseline"))),
      h("td", {}, row.state ? stateBadge(row.state) : ""),
      h("td", {}, (row.techniques ?? []).join(", ") || h("span", { class: "muted" }, "none declared")),
      h("td", { class: "number peak" }, known(bytes(row.peak_allocated_bytes)), meter(row.peak_allocated_bytes, row.capacity_bytes)),
      h("td", { class: "number" }, position === 0 ? h("span", { class: "muted" }, "—") : delta(row.peak_allocated_bytes, base.peak_allocated_bytes)),
      h("td", { class: "number" }, known(bytes(row.peak_reserved_bytes))),
      h("td", { class: "number" }, position === 0 ? h("span", { class: "muted" }, "—") : delta(row.peak_reserved_bytes, base.peak_reserved_bytes)),
      h("td", { class: "number" }, known(seconds(row.step_seconds_median))),
      h("td", { class: "number" }, position === 0 ? h("span", { class: "muted" }, "—") : ratioCell(row.step_time_ratio)),
      h("td", { class: "number" }, known(percent(row.fragmentation_fraction))),
      h("td", { class: "number" }, known(count(row.steps))),
    ];
    fill(
      this.table,
      h("header", {}, h("h2", {}, "Against the baseline"), h("span", { class: "spring" }), copyButton("Copy Markdown", () => toMarkdown(this.exportRows(true))), h("button", { class: "button small", type: "button", onclick: () => this.exportCsv() }, "CSV")),
      h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "plain compare-table" }, h("thead", {}, h("tr", {}, head.map((name, i) => show[i] && h("th", { class: i > 2 ? "number" : null, scope: "col" }, name)))), h("tbody", {}, rows.map((row, position) => h("tr", { class: position === 0 && rows.length > 1 ? "baseline" : null }, cells(row, position).filter((_, i) => show[i])))))),
    );
  }

  /** For people (rounded, with units) or for programs (bytes and fractions). */
  exportRows(forPeople) {
    const rows = this.answer?.rows ?? [];
    const base = rows[0];
    const change = (row, field) => (isKnown(row[field]) && base[field] ? row[field] / base[field] - 1 : null);
    if (forPeople) {
      return [
        ["run", "techniques", "peak allocated", "vs baseline", "peak reserved", "vs baseline", "step time", "time ratio"],
        ...rows.map((row, i) => [nameOf(row) + (i === 0 ? " (baseline)" : ""), (row.techniques ?? []).join(", "), bytes(row.peak_allocated_bytes), i ? signedPercent(change(row, "peak_allocated_bytes")) : "", bytes(row.peak_reserved_bytes), i ? signedPercent(change(row, "peak_reserved_bytes")) : "", seconds(row.step_seconds_median), i ? ratio(row.step_time_ratio) : ""]),
      ];
    }
    const fields = ["peak_allocated_bytes", "peak_reserved_bytes", "saved_fraction", "step_seconds_median", "step_time_ratio", "fragmentation_fraction", "steps", "state"];
    return [["run_id", "name", "techniques", ...fields], ...rows.map((row) => [idOf(row), nameOf(row), (row.techniques ?? []).join("+"), ...fields.map((field) => row[field] ?? null)])];
  }

  exportCsv() {
    if (this.answer) download("vramscope-compare.csv", toCsv(this.exportRows(false)), "text/csv");
  }

  /** `differences`: {setting: [value of each run]}; or a list of {name, values}. */
  drawDifferences(differences, rows) {
    const entries = (Array.isArray(differences) ? differences.map((entry) => [entry.name ?? entry.key, entry.values]) : Object.entries(differences)).map(([name, values]) => [name, Array.isArray(values) ? values : rows.map((row) => values[idOf(row)] ?? values[nameOf(row)])]);
    const differing = entries.filter(([, values]) => values.some((value) => JSON.stringify(value ?? null) !== JSON.stringify(values[0] ?? null)));
    const shown = this.view.all ? entries : differing;
    this.differences.hidden = rows.length < 2;
    if (rows.length < 2) return;
    const toggle = entries.length > differing.length || this.view.all;
    fill(
      this.differences,
      h("header", {}, h("h2", {}, "What differs"), h("span", { class: "spring" }), toggle && h("div", { class: "segmented", role: "group" }, h("button", { type: "button", "aria-pressed": String(!this.view.all), onclick: () => setQuery({ diff: null }) }, "Differences only"), h("button", { type: "button", "aria-pressed": String(this.view.all), onclick: () => setQuery({ diff: "all" }) }, "All"))),
      shown.length === 0
        ? h("p", { class: "pad muted" }, "These runs sent the same settings.")
        : h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "plain differences" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), rows.map((row, position) => h("th", { scope: "col" }, h("span", { class: "swatch marker", style: { "--swatch": this.colourOf(position) } }), " ", nameOf(row))))), h("tbody", {}, shown.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value, i) => h("td", { class: i && JSON.stringify(value ?? null) !== JSON.stringify(values[0] ?? null) ? "differs" : null }, settingText(name, value)))))))),
    );
  }
}

const idOf = (row) => row.run_id ?? row.run?.run_id ?? row.run;
const nameOf = (row) => row.name ?? row.run?.name ?? row.run;
const label = (row) => `${row.name} (${row.run_id.slice(0, 8)})`;
const warningText = (warning) => (typeof warning === "string" ? warning : (warning.text ?? warning.detail ?? JSON.stringify(warning)));

function settingText(name, value) {
  if (value === undefined || value === null) return h("span", { class: "muted" }, name.startsWith("config.") ? "not set" : "unknown");
  if (value === "") return h("span", { class: "muted" }, name === "allocator_settings" ? "defaults" : "empty");
  return typeof value === "string" ? value : JSON.stringify(value);
}

function ratioCell(value) {
  if (!isKnown(value)) return known("unknown");
  return h("span", { class: value > 1.005 ? "more" : value < 0.995 ? "less" : "" }, ratio(value));
}

export const open = (root) => new ComparePage(root);
