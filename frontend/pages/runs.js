/** All runs: what each needed, against the baseline and the capacity of its card. */

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
import { welcome } from "vramscope/parts/welcome.js";
import { go, setQuery, store } from "vramscope/store.js";

const PAGE_ROWS = 100;
const STATES = ["running", "finished", "failed", "lost"];

/** A column as the URL names it: "Peak allocated" is `peak_allocated`, with a minus before it where the highest stand first. */
const inUrl = (label) => label.toLowerCase().replace(/\W+/g, "_").replace(/_$/, "");

class RunsPage {
  rows = new Map(); // run_id -> {row, element}
  order = [];
  chosen = new Set();
  baselines = new Map(); // project -> row
  total = 0;
  cursor = null;
  sort = null; // {column, descending}, as the URL has it
  choices = {}; // filter -> what it was last drawn from

  constructor(root) {
    this.root = root;
    document.title = "Runs · vramscope";
    this.build();
    this.filters = this.readFilters();
    this.sort = this.readSort();
    this.markSorted();
    this.load();
    this.stops = [
      subscribe([], (message) => this.hear(message)),
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
    clearTimeout(this.again);
    clearTimeout(this.typing);
    this.loader?.disconnect();
  }

  update() {
    if (this.welcomed) this.drawWelcome();
    const [filters, sort] = [this.readFilters(), this.readSort()];
    const sameFilters = JSON.stringify(filters) === JSON.stringify(this.filters);
    if (JSON.stringify(sort) !== JSON.stringify(this.sort)) {
      this.sort = sort;
      this.markSorted();
      if (sameFilters) {
        this.arrange();
        if (sort) this.loadMore();
      }
    }
    if (sameFilters) return;
    this.filters = filters;
    this.syncFields();
    this.load();
  }

  readFilters() {
    const { q = "", project = "", state = "", device = "", tag = "" } = store.get().query;
    return { query: q, project, state: STATES.includes(state) ? state : "", device, tag };
  }

  readSort() {
    const { sort = "" } = store.get().query;
    const wanted = sort.replace(/^-/, "");
    const column = COLUMNS.find(([, label, key]) => key && inUrl(label) === wanted)?.[1];
    return column ? { column, descending: sort !== wanted } : null;
  }

  get filtered() {
    return Object.values(this.filters).some(Boolean);
  }

  build() {
    const changed = (name) => (event) => setQuery({ [name]: event.target.value || null });
    this.search = h("input", {
      type: "search",
      "data-search": true,
      placeholder: "Search name, project, tag, device  ( / )",
      "aria-label": "Search runs",
    });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => setQuery({ q: this.search.value }), 180);
    });
    this.project = h("select", { "aria-label": "Project", onchange: changed("project") });
    this.device = h("select", { "aria-label": "Device", onchange: changed("device") });
    this.tag = h("select", { "aria-label": "Tag", onchange: changed("tag") });
    this.state = h(
      "select",
      { "aria-label": "State", onchange: changed("state") },
      h("option", { value: "" }, "Any state"),
      STATES.map((state) => h("option", { value: state }, state)),
    );
    const sorts = COLUMNS.filter(([, , key]) => key).flatMap(([, label]) => [inUrl(label), `-${inUrl(label)}`]);
    this.address = addressNote({
      q: anything,
      project: anything,
      state: oneOf(...STATES),
      device: anything,
      tag: anything,
      sort: (text) => sorts.includes(text),
    });
    this.filterBar = h(
      "div",
      { class: "filters", role: "search" },
      this.search,
      this.project,
      this.state,
      this.device,
      this.tag,
    );
    this.trouble = h("div");
    this.body = h("tbody");
    this.heads = COLUMNS.map(([kind, label, key, , meaning]) => {
      const button = key
        ? h("button", { class: "sorter", type: "button", onclick: () => this.sortBy(label) }, label)
        : label;
      return h("th", { class: kind, scope: "col", title: meaning ?? null }, button);
    });
    this.summary = h("span");
    this.more = h(
      "button",
      { class: "button small", type: "button", hidden: true, onclick: () => this.loadMore() },
      "Show more",
    );
    this.frame = h(
      "section",
      // a run will be opened next: its charts' code is the slowest part of that
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
            this.heads,
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
      this.filterBar,
      this.frame,
      this.nothing,
      this.compareBar,
    );
    this.loader = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && this.loadMore(),
      { rootMargin: "600px" },
    );
    this.loader.observe(this.more);
    this.syncFields();
  }

  syncFields() {
    const { query, state } = this.filters ?? this.readFilters();
    if (document.activeElement !== this.search) this.search.value = query;
    this.state.value = state;
  }

  async load() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.loading = true;
    try {
      // while runs are sorted by a column, all of them are here; otherwise as many as were already shown
      const limit = this.sort ? 1000 : Math.min(1000, Math.max(PAGE_ROWS, this.order.length));
      await anchored();
      const answer = await api.runs({ ...this.filters, limit }, request.signal);
      if (this.filtered && this.baselines.size === 0) {
        for (const row of (await api.runs({ limit: 50 }, request.signal)).runs) this.learn(row);
      }
      this.loading = false;
      this.take(answer, true);
      if (this.sort) this.loadMore();
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
        { ...this.filters, limit: this.sort ? 1000 : PAGE_ROWS, cursor: this.cursor },
        this.request?.signal,
      );
      this.loading = false;
      this.take(answer, false);
      if (this.sort) this.loadMore(); // an order of some of the runs would be a wrong order
    } catch (error) {
      this.loading = false;
      if (error.name !== "AbortError") fill(this.trouble, problemBanner(error));
    }
  }

  learn(row) {
    if (row.baseline) this.baselines.set(row.project, row);
    else if (this.baselines.get(row.project)?.run_id === row.run_id) this.baselines.delete(row.project);
  }

  take({ runs, total, next_cursor, projects, devices, tags }, fresh) {
    fill(this.trouble);
    this.total = total;
    this.cursor = next_cursor;
    this.drawChoices("project", "All projects", projects);
    this.drawChoices("device", "Any device", devices);
    this.drawChoices("tag", "Any tag", tags);
    for (const row of runs) this.learn(row);
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

  /** What the list can be narrowed to. What was chosen stays to be seen, also where no run has it any more. */
  drawChoices(filter, all, stored) {
    const chosen = this.filters[filter];
    const names = chosen && !stored.includes(chosen) ? [...stored, chosen] : stored;
    const key = names.join("\n");
    if (this.choices[filter] !== key) {
      this.choices[filter] = key;
      fill(
        this[filter],
        h("option", { value: "" }, all),
        names.map((name) => h("option", { value: name }, name)),
      );
      this[filter].hidden = names.length === 0;
    }
    this[filter].value = chosen;
  }

  arrange() {
    const ids = this.sort ? this.sorted() : this.order;
    const elements = ids.map((id) => this.rows.get(id).element);
    // only touch the table where its order differs
    const before = this.body.children;
    if (before.length === elements.length && elements.every((element, i) => before[i] === element)) return;
    this.body.replaceChildren(...elements);
  }

  sorted() {
    const key = COLUMNS.find(([, label]) => label === this.sort.column)[2];
    const sign = this.sort.descending ? -1 : 1;
    return [...this.order].sort((a, b) => {
      const [x, y] = [key(this.rows.get(a).row), key(this.rows.get(b).row)];
      if (x === y) return 0;
      if (x === null || x === undefined) return 1; // unknown last, whichever way
      if (y === null || y === undefined) return -1;
      return x < y ? -sign : sign;
    });
  }

  /** By a column, the other way round, and as the server has them again. */
  sortBy(label) {
    const first = label !== "Run" && label !== "Device";
    const again = this.sort?.column === label;
    if (again && this.sort.descending !== first) setQuery({ sort: null });
    else setQuery({ sort: `${(again ? !first : first) ? "-" : ""}${inUrl(label)}` });
  }

  /** The heads tell the order. */
  markSorted() {
    COLUMNS.forEach(([, name], i) => {
      const button = this.heads[i].querySelector(".sorter");
      if (!button) return;
      if (this.sort?.column === name)
        button.setAttribute("aria-sort", this.sort.descending ? "descending" : "ascending");
      else button.removeAttribute("aria-sort");
    });
  }

  drawFoot() {
    const shown = this.order.length;
    const none = shown === 0;
    this.frame.hidden = none;
    this.filterBar.hidden = none && !this.filtered;
    this.summary.textContent =
      shown < this.total
        ? `${count(shown)} of ${count(this.total)} runs`
        : `${count(this.total)} ${this.total === 1 ? "run" : "runs"}`;
    this.more.hidden = !this.cursor;
    if (!none) {
      fill(this.nothing);
      this.welcomed = false;
    } else if (this.filtered) {
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

  /** Whether the server asks for a token may be heard after that there are no runs. */
  drawWelcome() {
    const asked = store.get().session?.required ? "with a token" : "without";
    if (this.welcomed === asked) return;
    this.welcomed = asked;
    fill(this.nothing, welcome({ token: asked === "with a token" }));
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

  hear({ event, data }) {
    if (event === "resync") this.soon();
    else if (event === "run") {
      const entry = this.rows.get(data.run_id);
      if (!entry) {
        this.soon();
        return;
      }
      const moved = entry.row.pinned !== data.pinned || entry.row.baseline !== data.baseline;
      this.learn(data);
      this.draw(data);
      if (moved) this.soon();
      else this.arrange();
    }
  }

  /** Something new: fetch the list again, once for all that comes at the same time. */
  soon() {
    if (this.again) return;
    this.again = setTimeout(() => {
      this.again = null;
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
    const ids = this.sort ? this.sorted() : this.order;
    download("vramscope-runs.csv", runsCsv(ids.map((id) => this.rows.get(id).row)), "text/csv");
  }
}

export const open = (root) => new RunsPage(root);
