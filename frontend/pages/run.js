/** One run, live: where its memory goes, when it was highest, who it is and how it ended. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { onAction } from "vramscope/keys.js";
import { anchored, subscribe } from "vramscope/live.js";
import { drawAge, endBanner, headline } from "vramscope/parts/run_head.js";
import { Kpis } from "vramscope/parts/kpis.js";
import { RunCharts } from "vramscope/parts/run_charts.js";
import { eventsPanel, whoPanel } from "vramscope/parts/run_facts.js";
import { RanksPanel } from "vramscope/parts/ranks.js";
import { problemBanner, staleBanner } from "vramscope/parts/pieces.js";
import { RunMap } from "vramscope/parts/run_map.js";
import { placeInWords, placesOf, readView, viewBar } from "vramscope/parts/view_bar.js";
import { setQuery, store } from "vramscope/store.js";
import * as unknownPage from "vramscope/pages/unknown.js";

const SUMMARY_EVERY_MS = 10_000;
const STEP_SAMPLES_EVERY_MS = 2_500;

class RunPage {
  stops = [];
  timers = [];
  now = null; // the run in full

  constructor(root, name) {
    this.root = root;
    this.name = name;
    document.title = `${name} · vramscope`;
    fill(root, h("p", { class: "muted" }, "loading…"));
    this.begin();
  }

  async begin() {
    try {
      [this.now] = await Promise.all([api.run(this.name), anchored()]);
    } catch (error) {
      if (this.closed || error.status === 401) return;
      if (error.status === 404) {
        this.inner = unknownPage.open(this.root, { path: `/runs/${encodeURIComponent(this.name)}`, problem: error });
        return;
      }
      const retry = h("button", { class: "button", type: "button", onclick: () => this.begin() }, "Try again");
      fill(this.root, problemBanner(error), retry);
      return;
    }
    if (this.closed) return;
    this.id = this.now.run_id;
    this.build();
    this.stops.push(
      subscribe([this.id], (message) => this.hear(message)),
      store.watch((state) => this.drawConnection(state)),
      onAction("follow", () => {
        setQuery({ from: null, to: null });
        store.set({ paused: false });
      }),
      onAction("axis", () => this.setAxis(this.view.clock ? "time" : this.view.x === "step" ? "clock" : "step")),
      onAction("smooth", () => setQuery({ smooth: this.view.smooth ? null : 1 })),
      onAction("baseline", () => this.toggleBaseline()),
      onAction("escape", () => setQuery({ from: null, to: null })),
      onAction("back", () => this.shift(-1)),
      onAction("on", () => this.shift(1)),
      onAction("export", (event) => this.charts.get("categories").export("csv", event ?? { target: this.charts.get("categories").querySelector(".menu-item") })),
    );
    this.timers.push(
      setInterval(() => this.running && (this.charts.get("phases").reload(), this.map.load()), SUMMARY_EVERY_MS),
      setInterval(() => this.charts.reloadStepSamples(), STEP_SAMPLES_EVERY_MS),
      setInterval(() => this.drawAge(), 1000),
    );
    this.drawConnection(store.get());
  }

  close() {
    this.closed = true;
    this.inner?.close();
    for (const stop of this.stops) stop();
    this.timers.forEach(clearInterval);
    clearTimeout(this.zooming);
    clearTimeout(this.refreshing);
    store.set({ paused: false });
  }

  get running() {
    return this.now.state === "running";
  }

  readView() {
    return readView(this.places());
  }

  places() {
    return placesOf(this.now);
  }

  get zero() {
    return this.now.started_seconds;
  }

  build() {
    this.view = this.readView();
    this.head = h("div");
    this.ended = h("div");
    this.connection = h("div", { "aria-live": "polite" });
    this.viewBar = h("div", { class: "view-bar" });
    this.kpis = new Kpis(this.now);
    this.charts = new RunCharts(this);
    this.map = new RunMap(this);
    this.who = h("div");
    this.events = h("div");
    this.ranks = new RanksPanel((rank) => setQuery({ rank, device: null }));
    fill(this.root, this.connection, this.head, this.ended, this.kpis.element, this.viewBar, this.map.element, this.charts.element, this.ranks.element, h("div", { class: "panels" }, this.who, this.events));
    this.drawAll();
    this.fetchLast();
    this.map.load();
  }

  get drawsLive() {
    return this.running && this.view.from === null && !store.get().paused;
  }

  update() {
    if (!this.id) return;
    const before = this.view;
    this.view = this.readView();
    if (JSON.stringify(before) === JSON.stringify(this.view)) return;
    this.drawViewBar();
    const samePlace = before.rank === this.view.rank && before.device === this.view.device;
    if (before.x !== this.view.x || !samePlace) this.map.load();
    const { clock, smooth } = before;
    if (JSON.stringify({ ...this.view, clock, smooth }) === JSON.stringify(before)) {
      this.charts.redraw(); // the same rows, shown in another way
      return;
    }
    if (!samePlace) {
      this.kpis.clear();
      this.fetchLast();
      this.ranks.draw(this.now, this.view, true);
      this.drawFacts();
    }
    const sameAxis = before.x === this.view.x && samePlace;
    clearTimeout(this.zooming);
    // 150 ms after the last change; the request before is given up, the old picture stays until the new one is here
    this.zooming = setTimeout(() => this.charts.reload(sameAxis), sameAxis ? 150 : 0);
  }

  zoom(range) {
    if (!range) setQuery({ from: null, to: null });
    else {
      const digits = this.view.x === "time" ? 3 : 1;
      setQuery({ from: Number(Math.max(0, range.from).toFixed(digits)), to: Number(range.to.toFixed(digits)) });
    }
  }

  /** Move the window by one step (on the step axis), else by a tenth of itself. */
  shift(direction) {
    const { x, from, to } = this.view;
    if (from === null) return;
    const by = direction * (x === "step" ? 1 : (to - from) / 10);
    setQuery({ from: Number((from + by).toFixed(3)), to: Number((to + by).toFixed(3)) });
  }

  setAxis(x) {
    const sameUnit = (x === "step") === (this.view.x === "step");
    setQuery({ x: x === "time" ? null : x, ...(sameUnit ? {} : { from: null, to: null, last: null }) });
  }

  hear({ event, data }) {
    if (event === "resync") this.refresh(true);
    else if (event === "run" && data.run_id === this.id) this.takeRow(data);
    else if (event === "rows") {
      const newestTime = data.columns.time_seconds.at(-1);
      this.newestTime = Math.max(this.newestTime ?? 0, newestTime);
      if (data.columns.step) this.newestStep = Math.max(this.newestStep ?? 0, data.columns.step.at(-1));
      if (store.get().paused) return;
      if (data.rank === this.view.rank && data.device === this.view.device) this.kpis.feed(data);
      if (this.drawsLive) this.charts.feed(data);
      this.root.dataset.lastRow = newestTime;
    }
  }

  /** A row of the runs list: the run's own numbers. What only the full run holds is fetched when it matters. */
  takeRow(row) {
    const changed = row.state !== this.now.state || row.ranks_reporting !== this.now.ranks_reporting || row.peak_allocated_bytes !== this.now.peak_allocated_bytes;
    const { leaks, ...rest } = row; // how many; the run in full has the leaks themselves under this name
    this.now = { ...this.now, ...rest, leak_count: leaks };
    this.kpis.setRun(this.now, this.place());
    this.drawHead();
    if (changed) this.refresh(row.state !== "running");
    else if (this.now.world_size > 1 || !this.lastFull || Date.now() - this.lastFull > 15_000) this.refresh(false);
  }

  /** Fetch the run in full, at most every two seconds; with `charts`, the windows too. */
  refresh(charts) {
    this.wantCharts ||= charts;
    if (this.refreshing) return;
    const wait = Math.max(0, 2_000 - (Date.now() - (this.lastFull ?? 0)));
    this.refreshing = setTimeout(async () => {
      this.refreshing = null;
      this.lastFull = Date.now();
      const withCharts = this.wantCharts;
      this.wantCharts = false;
      try {
        const full = await api.run(this.id);
        if (this.closed) return;
        this.now = full;
        this.drawAll();
        if (withCharts) {
          this.charts.reload();
          this.fetchLast();
        }
      } catch {
        // the connection's own banner says it; the next event asks again
      }
    }, charts ? Math.min(wait, 300) : wait);
  }

  place() {
    return this.places().find((place) => place.rank === this.view.rank && place.device === this.view.device) ?? this.places()[0];
  }

  /** The newest values before the first live row, and all there ever will be of a run that ended. */
  async fetchLast() {
    const { rank, device } = this.view;
    try {
      const end = this.now.window?.last_seconds;
      if (!end) return;
      const answer = await api.series(this.id, { stream: "samples", names: Kpis.FIELDS.join(","), rank, device, x: "time", from: Math.max(0, end - this.zero - 60), points: 4000 });
      if (this.closed || rank !== this.view.rank || device !== this.view.device) return;
      this.kpis.seed(answer);
    } catch {
      // unknown stays shown as unknown
    }
  }

  async toggleBaseline() {
    try {
      const row = await api.changeRun(this.id, { baseline: !this.now.baseline });
      this.now = { ...this.now, baseline: row.baseline };
      this.drawHead();
      this.findBaseline();
    } catch (error) {
      fill(this.ended, problemBanner(error));
    }
  }

  async findBaseline() {
    if (this.now.baseline) {
      this.base = null;
      this.drawHead();
      return;
    }
    try {
      const { runs } = await api.runs({ project: this.now.project, limit: 50 });
      this.base = runs.find((row) => row.baseline) ?? null;
      this.drawHead();
    } catch {
      // no chip then
    }
  }

  drawAll() {
    this.drawHead();
    if (this.base === undefined) {
      this.base = null;
      this.findBaseline();
    }
    fill(this.ended, endBanner(this.now), this.view.missing && h("div", { class: "banner warn", role: "status" }, h("strong", {}, `There is no ${this.view.missing} in this run.`), `Shown instead: rank ${this.view.rank}.`));
    this.kpis.setRun(this.now, this.place());
    this.drawViewBar();
    this.drawRanks();
    this.drawFacts();
  }

  /** Who and events; built anew only when something in them is new. */
  drawFacts() {
    const { ranks, config, command, agent_overhead: cost, dropped_samples: dropped, state, events, ended_seconds: ended } = this.now;
    const rank = ranks.find((candidate) => candidate.rank === this.view.rank) ?? ranks[0];
    const who = JSON.stringify([rank && { ...rank, last_seen_seconds: 0, steps: 0, clock_skew_seconds: 0 }, config, command, cost, dropped, ranks.length]);
    if (who !== this.whoKey) fill(this.who, whoPanel(this.now, this.view.rank));
    this.whoKey = who;
    const told = JSON.stringify([state, ended, events]);
    if (told !== this.eventsKey) fill(this.events, eventsPanel(this.now));
    this.eventsKey = told;
  }

  drawHead() {
    document.title = `${this.now.name} · vramscope`;
    const key = JSON.stringify([this.now.name, this.now.state, this.now.steps, this.now.baseline, this.now.pinned, this.now.tags, this.now.framework, this.now.ranks_reporting, this.now.leak_count, this.base?.run_id, this.base?.peak_allocated_bytes, this.now.peak_allocated_bytes]);
    if (key === this.headKey) return;
    this.headKey = key;
    fill(this.head, headline(this.now, { base: this.base, onBaseline: () => this.toggleBaseline(), share: () => location.href, tab: "memory" }));
    this.drawAge();
  }

  drawAge() {
    drawAge(this.head, this.now);
  }

  drawViewBar() {
    const places = this.places();
    const key = JSON.stringify([this.view, places.length, this.running]);
    if (key === this.viewKey) return;
    this.viewKey = key;
    this.map.draw();
    this.pauseButton = this.running && h("button", { class: "button small", type: "button", onclick: () => store.set({ paused: !store.get().paused }), title: "pause or go on (space)" }, store.get().paused ? "Go on" : "Pause");
    fill(this.viewBar, viewBar(this.view, places, { onAll: () => this.zoom(null), onAxis: (x) => this.setAxis(x), words: (value) => placeInWords(this.view, this.zero, value) }), this.pauseButton);
  }

  drawRanks() {
    this.ranks.draw(this.now, this.view);
  }

  /** The banner of a lost connection; charts turn grey, and the window is fetched again when the server is back. */
  drawConnection({ live, paused }) {
    const stale = live.state === "stale" && this.running;
    this.charts.element.classList.toggle("stale", stale);
    const key = stale ? `stale ${live.staleSince}` : "";
    if (key !== this.connectionKey) {
      this.connectionKey = key;
      fill(this.connection, stale && staleBanner(live));
    }
    if (this.pauseButton) this.pauseButton.textContent = paused ? "Go on" : "Pause";
    if (this.wasPaused && !paused) this.refresh(true);
    this.wasPaused = paused;
  }
}

export const open = (root, { run }) => new RunPage(root, run);
