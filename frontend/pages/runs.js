/** List of runs: the memory of each, against its baseline and the capacity of its device. */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/chart.js";
import { download, fill, h } from "vramscope/dom.js";
import { ago, count } from "vramscope/format.js";
import { onAction } from "vramscope/keys.js";
import { anchored, subscribe } from "vramscope/live.js";
import { addressNote, anything, oneOf } from "vramscope/parts/address.js";
import { icon } from "vramscope/parts/icons.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { RUNS_COLUMNS as COLUMNS, runsCsv } from "vramscope/parts/runs_columns.js";
import { RunsFilters, STATES } from "vramscope/parts/runs_filters.js";
import { RunsSorting, isSort } from "vramscope/parts/runs_sorting.js";
import { welcome } from "vramscope/parts/welcome.js";
import { go, store } from "vramscope/store.js";

const PAGE_ROWS = 100;

class RunsPage {
  rows = new Map(); // run_id -> {row, element}
  order = [];
  chosen = new Set();
  baselines = new Map(); // project -> row
  total = 0;
  cursor = null;
  filters = new RunsFilters();
  sorting = new RunsSorting();

  constructor(root) {
    this.root = root;
    document.title = "Runs · vramscope";
    this.build();
    this.filters.read();
    this.sorting.read();
    this.load();
    this.stops = [
      subscribe([], (message) => this.onMessage(message)),
      onAction("export", () => this.exportCsv()),
      onAction("escape", () => this.choose(null)),
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
  }

  update() {
    if (this.welcomed) this.drawWelcome();
    const [filtersChanged, sortingChanged] = [this.filters.read(), this.sorting.read()];
    if (filtersChanged) this.load();
    else if (sortingChanged) {
      this.arrange();
      if (this.sorting.isOn) this.loadMore();
    }
  }

  build() {
    this.address = addressNote({
      q: anything,
      project: anything,
      state: oneOf(...STATES),
      device: anything,
      tag: anything,
      sort: isSort,
    });
    this.trouble = h("div");
    this.body = h("tbody");
    this.summary = h("span");
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
      h(
        "table",
        { class: "runs-table" },
        h("caption", { class: "offscreen" }, "Runs: pinned ones and baselines first, then the newest"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { class: "tick" }, h("span", { class: "offscreen" }, "choose")),
            this.sorting.heads,
            h("th", { class: "row-tools" }, h("span", { class: "offscreen" }, "pin")),
          ),
        ),
        this.body,
      ),
      h("div", { class: "runs-foot" }, this.summary, this.more),
    );
    this.compareLink = h("button", {
      class: "button primary",
      type: "button",
      onclick: () => go(`/compare?runs=${[...this.chosen].join(",")}`),
    });
    this.compareBar = h(
      "div",
      { class: "compare-bar", hidden: true },
      h("span", { class: "said" }),
      this.compareLink,
      h("button", { class: "button quiet small", type: "button", onclick: () => this.choose(null) }, "Clear"),
    );
    this.nothing = h("div");
    fill(
      this.root,
      h("div", { class: "page-head" }, h("h1", {}, "Runs")),
      this.address.element,
      this.trouble,
      this.filters.element,
      this.frame,
      this.nothing,
      this.compareBar,
    );
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
      // sorting needs all runs; otherwise as many as are shown
      const limit = this.sorting.isOn ? 1000 : Math.min(1000, Math.max(PAGE_ROWS, this.order.length));
      await anchored();
      const answer = await api.runs({ ...this.filters.chosen, limit }, request.signal);
      if (this.filters.isOn && this.baselines.size === 0) {
        for (const row of (await api.runs({ limit: 50 }, request.signal)).runs) this.noteBaseline(row);
      }
      this.loading = false;
      this.addRows(answer, true);
      if (this.sorting.isOn) this.loadMore();
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
        { ...this.filters.chosen, limit: this.sorting.isOn ? 1000 : PAGE_ROWS, cursor: this.cursor },
        this.request?.signal,
      );
      this.loading = false;
      this.addRows(answer, false);
      if (this.sorting.isOn) this.loadMore(); // a sorted list of some runs would be wrong
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
    for (const row of runs) this.noteBaseline(row);
    if (fresh) {
      this.order = [];
      const kept = this.rows;
      this.rows = new Map();
      for (const row of runs) this.rows.set(row.run_id, kept.get(row.run_id) ?? { row: null, element: null });
    }
    for (const row of runs) {
      if (!this.rows.has(row.run_id)) this.rows.set(row.run_id, { row: null, element: null });
      if (!this.order.includes(row.run_id) || fresh) this.order.push(row.run_id);
      this.draw(row);
    }
    this.arrange();
    this.drawFoot();
  }

  draw(row) {
    const entry = this.rows.get(row.run_id);
    const text = JSON.stringify(row) + JSON.stringify(this.baselines.get(row.project)?.peak_allocated_bytes ?? null);
    if (entry.text === text) return;
    entry.text = text;
    entry.row = row;
    const element = this.rowElement(row);
    if (entry.element?.isConnected) entry.element.replaceWith(element);
    entry.element = element;
  }

  rowElement(row) {
    const tick = h("input", {
      type: "checkbox",
      checked: this.chosen.has(row.run_id),
      "aria-label": `select ${row.name} for comparison`,
      onchange: (event) => this.choose(row.run_id, event.target.checked),
    });
    const pinWords = row.pinned ? "unpin" : "pin to the top";
    return h(
      "tr",
      {
        class: [this.chosen.has(row.run_id) && "chosen", row.baseline && "baseline"].filter(Boolean).join(" "),
        "data-run": row.run_id,
      },
      h("td", { class: "tick" }, tick),
      COLUMNS.map(([kind, , , content]) => h("td", { class: kind }, content(row, this.baselines.get(row.project)))),
      h(
        "td",
        { class: "row-tools" },
        h(
          "button",
          {
            class: "button quiet small icon",
            type: "button",
            "aria-pressed": String(Boolean(row.pinned)),
            title: pinWords,
            "aria-label": `${pinWords}: ${row.name}`,
            onclick: () => this.change(row, { pinned: !row.pinned }),
          },
          icon("pin"),
        ),
      ),
    );
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
    return this.sorting.sorted(this.order, (id) => this.rows.get(id).row);
  }

  arrange() {
    const elements = this.arranged().map((id) => this.rows.get(id).element);
    // leaves the table alone if its order is right
    const before = this.body.children;
    if (before.length === elements.length && elements.every((element, i) => before[i] === element)) return;
    this.body.replaceChildren(...elements);
  }

  drawFoot() {
    const shown = this.order.length;
    const none = shown === 0;
    this.frame.hidden = none;
    this.filters.element.hidden = none && !this.filters.isOn;
    this.summary.textContent =
      shown < this.total
        ? `${count(shown)} of ${count(this.total)} runs`
        : `${count(this.total)} ${this.total === 1 ? "run" : "runs"}`;
    this.more.hidden = !this.cursor;
    if (!none) {
      fill(this.nothing);
      this.welcomed = false;
    } else if (this.filters.isOn) {
      this.welcomed = false;
      fill(
        this.nothing,
        h(
          "section",
          { class: "card empty" },
          h("h2", {}, "No run matches"),
          h("p", {}, "No stored run matches the search. ", h("a", { href: "/runs" }, "Show all runs")),
        ),
      );
    } else this.drawWelcome();
    this.drawChosen();
  }

  /** Draws the welcome text. Drawn again when the session says whether the server requires tokens. */
  drawWelcome() {
    const mode = store.get().session?.required ? "with a token" : "without";
    if (this.welcomed === mode) return;
    this.welcomed = mode;
    fill(this.nothing, welcome({ token: mode === "with a token" }));
  }

  choose(run, on) {
    if (run === null) {
      this.chosen.clear();
      for (const box of this.body.querySelectorAll(".tick input")) box.checked = false;
    } else if (on) this.chosen.add(run);
    else this.chosen.delete(run);
    this.drawChosen();
  }

  drawChosen() {
    for (const [id, { element }] of this.rows) element?.classList.toggle("chosen", this.chosen.has(id));
    const n = this.chosen.size;
    this.compareBar.hidden = n === 0;
    this.compareBar.querySelector(".said").textContent = n === 1 ? "1 run selected" : `${n} runs selected`;
    this.compareLink.textContent = `Compare (${n})`;
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
