/** List of runs: the memory of each, against its baseline and the capacity of its device. */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/charts/plotly.js";
import { arrangeChildren, download, fill, h } from "vramscope/dom.js";
import { ago, count } from "vramscope/format.js";
import { peakOf } from "vramscope/parts/peak_bound.js";
import { onAction } from "vramscope/keys.js";
import { anchored, subscribe } from "vramscope/live.js";
import { addressNote, anything, oneOf } from "vramscope/parts/address.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { runsCsv } from "vramscope/parts/runs_columns.js";
import { focusWithin, restoreFocus, runRow } from "vramscope/parts/runs_row.js";
import { RunsFilters, STATES } from "vramscope/parts/runs_filters.js";
import { GROUPS, RunsGroups } from "vramscope/parts/runs_groups.js";
import { RunsKeys } from "vramscope/parts/runs_keys.js";
import { RunsSelection } from "vramscope/parts/runs_selection.js";
import { RunsSorting, isSort } from "vramscope/parts/runs_sorting.js";
import { RunsView, areColumns } from "vramscope/parts/runs_view.js";
import { openField, openNote } from "vramscope/parts/runs_fields.js";
import { noMatch, welcome } from "vramscope/parts/welcome.js";
import { store } from "vramscope/store.js";

const PAGE_ROWS = 100;

class RunsPage {
  rows = new Map(); // run_id -> {row, element}
  order = [];
  baselines = new Map(); // project -> row
  total = 0;
  cursor = null;
  filters = new RunsFilters();
  sorting = new RunsSorting();
  view = new RunsView(this.sorting.list);
  selection = new RunsSelection(
    (id) => this.rows.get(id)?.row,
    () => this.drawChosen(),
    (problem) => this.load().then(() => problem && fill(this.trouble, problemBanner(problem))),
  );
  groups = new RunsGroups(
    () => this.arrange(),
    (ids, on) => this.selection.set(ids, on),
  );

  constructor(root) {
    this.root = root;
    document.title = "Runs · vramscope";
    this.build();
    this.filters.read();
    this.sorting.read();
    this.readView();
    this.load();
    this.resizing = new ResizeObserver(() => this.readView() && this.redraw());
    this.resizing.observe(this.root);
    this.keys = new RunsKeys(this.body, (row) => openNote(row, this));
    this.stops = [
      () => this.keys.close(),
      subscribe([], (message) => this.onMessage(message)),
      onAction("export", () => this.exportCsv()),
      onAction("escape", () => this.root.querySelector(".menu[open]") || this.selection.clear()), // menus close first
    ];
    this.clock = setInterval(() => this.tick(), 10_000);
  }

  close() {
    this.request?.abort();
    this.address.stop();
    for (const stop of this.stops) stop();
    clearInterval(this.clock);
    clearTimeout(this.refreshTimer);
    this.filters.close();
    this.loader?.disconnect();
    this.resizing.disconnect();
  }

  update() {
    if (this.welcomed) this.drawWelcome();
    const [filtersChanged, sortingChanged] = [this.filters.read(), this.sorting.read()];
    if (this.readView()) this.redraw();
    if (filtersChanged) this.load();
    else {
      if (sortingChanged) this.arrange();
      if (this.needsAll) this.loadMore();
    }
  }

  /** A sorted or grouped list of some runs would be wrong. */
  get needsAll() {
    return this.sorting.isOn || this.view.group !== "";
  }

  /** Reads the view and draws the heads. Returns whether the rows have to be drawn again. */
  readView() {
    const width = this.root.clientWidth - 2 * parseFloat(getComputedStyle(this.root).paddingLeft);
    const changed = this.view.read(width, this.rows.size === 0 || this.baselines.size > 0);
    if (!changed) return false;
    this.table.style.setProperty("--tracks", this.view.tracks);
    this.table.style.setProperty("--least", `${this.view.least}px`);
    this.frame.classList.toggle("wide", this.view.isWide);
    fill(
      this.headRow,
      h("th", { class: "tick", role: "columnheader" }, this.all),
      this.view.columns.map(({ id }) => this.sorting.heads.get(id)),
      h("th", { class: "row-tools", role: "columnheader" }, h("span", { class: "offscreen" }, "pin")),
    );
    return true;
  }

  /** Draws all rows again: the columns or the scale of the sparklines have changed. */
  redraw() {
    this.view.scaleTo(this.listedRows());
    for (const row of this.listedRows()) this.draw(row);
    this.arrange();
  }

  listedRows() {
    return this.order.map((id) => this.rows.get(id).row).filter(Boolean);
  }

  build() {
    this.address = addressNote({
      q: anything,
      project: anything,
      state: oneOf(...STATES),
      device: anything,
      tag: anything,
      job: anything,
      sort: isSort,
      group: oneOf(...GROUPS),
      columns: areColumns,
      scale: oneOf("own"),
    });
    this.trouble = h("div");
    this.body = h("tbody", { role: "rowgroup", onclick: (event) => openField(event, this) });
    this.headRow = h("tr", { role: "row" });
    this.all = h("input", {
      type: "checkbox",
      "aria-label": "select all listed runs",
      onchange: (event) => this.selection.set(this.order, event.target.checked),
    });
    this.knownTags = h("datalist", { id: "known-tags" });
    this.summary = h("span", { class: "muted tabular" });
    this.more = h(
      "button",
      { class: "button small", type: "button", hidden: true, onclick: () => this.loadMore() },
      "Show more",
    );
    this.frame = h(
      "section",
      // loads Plotly before a run is opened: it is the slowest part of that page
      {
        class: "card runs-frame",
        hidden: true,
        onpointerover: (event) => event.target.closest("a") && loadPlotly().catch(() => {}),
      },
      (this.table = h(
        "table",
        { class: "runs-table", role: "table" },
        h("caption", { class: "offscreen" }, "Runs: pinned ones and baselines first, then the newest"),
        h("thead", { role: "rowgroup" }, this.headRow),
        this.body,
      )),
      h("div", { class: "runs-foot" }, this.more),
    );
    this.nothing = h("div");
    fill(
      this.root,
      h("div", { class: "page-head" }, h("h1", {}, "Runs"), this.summary),
      this.address.element,
      this.trouble,
      this.filters.element,
      this.frame,
      this.nothing,
      this.selection.element,
      this.knownTags,
    );
    this.filters.element.append(this.view.element);
    this.loader = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && this.loadMore(),
      { rootMargin: "600px" },
    );
    this.loader.observe(this.more);
  }

  async load() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.loading = true;
    try {
      // all runs, or as many as are shown
      const limit = this.needsAll ? 1000 : Math.min(1000, Math.max(PAGE_ROWS, this.order.length));
      await anchored();
      const answer = await api.runs({ ...this.filters.chosen, limit }, request.signal);
      if (this.filters.isOn && this.baselines.size === 0) {
        for (const row of (await api.runs({ limit: 50 }, request.signal)).runs) this.noteBaseline(row);
      }
      this.loading = false;
      this.addRows(answer, true);
      if (this.needsAll) this.loadMore();
    } catch (error) {
      this.loading = false;
      if (error.name === "AbortError" || error.status === 401) return;
      fill(this.trouble, problemBanner(error));
    }
  }

  async loadMore() {
    if (!this.cursor || this.loading) return;
    this.loading = true;
    try {
      const answer = await api.runs(
        { ...this.filters.chosen, limit: this.needsAll ? 1000 : PAGE_ROWS, cursor: this.cursor },
        this.request?.signal,
      );
      this.loading = false;
      this.addRows(answer, false);
      if (this.needsAll) this.loadMore();
    } catch (error) {
      this.loading = false;
      if (error.name !== "AbortError") fill(this.trouble, problemBanner(error));
    }
  }

  noteBaseline(row) {
    if (row.baseline) this.baselines.set(row.project, row);
    else if (this.baselines.get(row.project)?.run_id === row.run_id) this.baselines.delete(row.project);
  }

  addRows({ runs, total, next_cursor, projects, devices, tags }, fresh) {
    fill(this.trouble);
    this.total = total;
    this.cursor = next_cursor;
    this.filters.offer({ project: projects, device: devices, tag: tags });
    fill(
      this.knownTags,
      tags.map((tag) => h("option", { value: tag })),
    );
    for (const row of runs) this.noteBaseline(row);
    if (fresh) {
      this.order = [];
      const kept = this.rows;
      this.rows = new Map();
      for (const row of runs) this.rows.set(row.run_id, kept.get(row.run_id) ?? { row: null, element: null });
    }
    for (const row of runs) {
      if (!this.rows.has(row.run_id)) this.rows.set(row.run_id, { row: null, element: null });
      else if (!fresh) continue;
      this.order.push(row.run_id);
    }
    for (const row of runs) this.rows.get(row.run_id).row = row;
    if (this.readView()) this.redraw(); // a first baseline has a column of its own
    if (this.view.scaleTo(this.listedRows())) this.redraw();
    for (const row of runs) this.draw(row);
    this.arrange();
    this.drawFoot();
  }

  draw(row) {
    const entry = this.rows.get(row.run_id);
    const base = this.baselines.get(row.project);
    const text = JSON.stringify([row, base && peakOf(base), this.view.ceiling, [...this.view.shown]]);
    entry.row = row;
    if (entry.text === text || entry.element?.querySelector(".tag-field")) return; // a field that is open stays
    entry.text = text;
    const focus = focusWithin(entry.element);
    const element = runRow(row, {
      view: this.view,
      base,
      chosen: this.selection.chosen.has(row.run_id),
      onSelect: (on) => this.selection.set([row.run_id], on),
      onPin: () => this.change(row, { pinned: !row.pinned }),
    });
    if (entry.element?.isConnected) entry.element.replaceWith(element);
    entry.element = element;
    restoreFocus(element, focus);
  }

  /** Draws a row again although its values are the same: a field of it was left. */
  drawAgain(entry, focus) {
    entry.text = null;
    this.draw(entry.row);
    entry.element.querySelector(focus)?.focus({ preventScroll: true });
  }

  async change(row, patch) {
    try {
      await api.changeRun(row.run_id, patch);
      this.load();
    } catch (error) {
      fill(this.trouble, problemBanner(error));
    }
  }

  /** Run ids in the order of the table. */
  arranged() {
    return this.sorting.sorted(
      this.order,
      (id) => this.rows.get(id).row,
      (row) => this.baselines.get(row.project),
    );
  }

  arrange() {
    const elements = this.groups.elements(
      this.view.group,
      this.arranged(),
      (id) => this.rows.get(id),
      this.selection.chosen,
    );
    arrangeChildren(this.body, elements);
  }

  drawFoot() {
    const shown = this.order.length;
    const none = shown === 0;
    this.frame.hidden = none;
    this.summary.hidden = none;
    this.filters.element.hidden = none && !this.filters.isOn;
    this.summary.textContent =
      shown < this.total
        ? `${count(shown)} of ${count(this.total)} runs`
        : `${count(this.total)} ${this.total === 1 ? "run" : "runs"}`;
    this.more.hidden = !this.cursor;
    if (none && !this.filters.isOn) this.drawWelcome();
    else {
      this.welcomed = false;
      fill(this.nothing, none && noMatch());
    }
    this.drawChosen();
  }

  /** Draws the welcome text. Drawn again when the session says whether the server requires tokens. */
  drawWelcome() {
    const mode = store.get().session?.required ? "with a token" : "without";
    if (this.welcomed === mode) return;
    this.welcomed = mode;
    fill(this.nothing, welcome({ token: mode === "with a token" }));
  }

  drawChosen() {
    const { chosen } = this.selection;
    for (const [id, { element }] of this.rows) {
      if (!element || element.classList.contains("chosen") === chosen.has(id)) continue;
      element.classList.toggle("chosen", chosen.has(id));
      element.querySelector(".tick input").checked = chosen.has(id);
    }
    const listed = this.order.filter((id) => chosen.has(id)).length;
    this.all.checked = listed > 0 && listed === this.order.length;
    this.all.indeterminate = listed > 0 && listed < this.order.length;
    if (this.view.group) this.arrange();
  }

  onMessage({ event, data }) {
    if (event === "resync") this.refreshSoon();
    else if (event === "run") {
      const entry = this.rows.get(data.run_id);
      if (!entry) {
        this.refreshSoon();
        return;
      }
      const moved = entry.row.pinned !== data.pinned || entry.row.baseline !== data.baseline;
      this.noteBaseline(data);
      entry.row = data;
      if (this.view.scaleTo(this.listedRows())) this.redraw();
      this.draw(data);
      if (moved) this.refreshSoon();
      else this.arrange();
    }
  }

  /** Fetches the list again, once for several changes. */
  refreshSoon() {
    if (this.refreshTimer) return;
    this.refreshTimer = setTimeout(() => {
      this.refreshTimer = null;
      this.load();
    }, 250);
  }

  tick() {
    const now = Date.now() / 1000;
    for (const time of this.body.querySelectorAll("time")) {
      const text = ago(Number(time.dataset.moment), now);
      if (time.textContent !== text) time.textContent = text;
    }
  }

  exportCsv() {
    download("vramscope-runs.csv", runsCsv(this.arranged().map((id) => this.rows.get(id).row)), "text/csv");
  }
}

export const open = (root) => new RunsPage(root);
