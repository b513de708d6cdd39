/** Page of one run, live: its memory, its peak, its environment and its end. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { isKnown } from "vramscope/format.js";
import { endBanner, headline } from "vramscope/parts/run_head.js";
import { RunPage, headOf, opens, withRow } from "vramscope/parts/run_page.js";
import { Baseline } from "vramscope/parts/baseline.js";
import { BeforeFailure } from "vramscope/parts/before_failure.js";
import { NextChange } from "vramscope/parts/next_change.js";
import { peakOf } from "vramscope/parts/peak_bound.js";
import { PeakStack } from "vramscope/parts/peak_stack.js";
import { addressNote } from "vramscope/parts/address.js";
import { Kpis } from "vramscope/parts/kpis.js";
import { RunCharts } from "vramscope/parts/run_charts.js";
import { eventsPanel, whoKey, whoPanel } from "vramscope/parts/run_facts.js";
import { othersKey, othersPanel } from "vramscope/parts/other_processes.js";
import { RanksPanel } from "vramscope/parts/ranks.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { findingsPanel, shortWords, techniquesPanel } from "vramscope/parts/techniques.js";
import { RankMap } from "vramscope/parts/rank_map.js";
import { PhoneOrder } from "vramscope/parts/phone_order.js";
import { RunMap } from "vramscope/parts/run_map.js";
import { RunRefresh } from "vramscope/parts/run_refresh.js";
import { peakRank, runVerdict, verdictKey } from "vramscope/parts/run_verdict.js";
import { setAxis, shiftWindow, zoomTo } from "vramscope/parts/run_window.js";
import { ADDRESS, isOnCpu, placeInWords, placesOf, readView, viewBar } from "vramscope/parts/view_bar.js";
import { go, setQuery, store, togglePause } from "vramscope/store.js";

const SUMMARY_EVERY_MS = 10_000;
const STEP_SAMPLES_EVERY_MS = 2_500;
class MemoryPage extends RunPage {
  tab = "memory";
  preloadsPlotly = false; // the charts load Plotly themselves
  leaks = null; // answer of /leaks
  baseline = new Baseline();
  change = new NextChange();
  refreshing = new RunRefresh((run, withCharts) => this.takeRun(run, withCharts));
  stack = new PeakStack();
  before = new BeforeFailure();

  get subject() {
    return null; // the title of the run's first page is its name
  }

  errorAction() {
    return h("button", { class: "button", type: "button", onclick: () => this.begin() }, "Try again");
  }

  actions() {
    return {
      follow: () => setQuery({ from: null, to: null, paused: null }),
      axis: () => setAxis(this.view, this.view.clock ? "time" : this.view.x === "step" ? "clock" : "step"),
      smooth: () => setQuery({ smooth: this.view.smooth ? null : 1 }),
      baseline: () => this.toggleBaseline(),
      escape: () => setQuery({ from: null, to: null }),
      back: () => shiftWindow(this.view, -1),
      on: () => shiftWindow(this.view, 1),
      export: (event) => {
        const chart = this.charts.get(isOnCpu(this.place()) ? "host" : "stack");
        chart.export("csv", event ?? { target: chart.querySelector(".menu-item") });
      },
    };
  }

  close() {
    super.close();
    clearTimeout(this.zooming);
    this.refreshing.close();
  }

  get running() {
    return this.run.state === "running";
  }

  readView() {
    return readView(this.places(), this.rankOfPeak);
  }

  places() {
    return placesOf(this.run);
  }

  /** Whether there is anything to draw in a chart. */
  get hasSamples() {
    return this.newestTime !== undefined || isKnown(this.run.window?.last_seconds);
  }

  get zero() {
    return this.run.started_seconds;
  }

  build() {
    this.rankOfPeak = peakRank(this.run); // as long as the page is shown: the ranks of a live run may take turns
    this.view = this.readView();
    const { stale, head, ended, verdict, findings, bar, others, techniques, who, events } = this.divide(
      "stale",
      "head",
      "ended",
      "verdict",
      "findings",
      "bar",
      "others",
      "techniques",
      "who",
      "events",
    );
    stale.setAttribute("aria-live", "polite");
    bar.className = "view-bar";
    techniques.className = others.className = "wide";
    this.kpis = new Kpis(this.run);
    this.map = new RunMap(this);
    this.charts = new RunCharts(this);
    const pick = (rank) => setQuery({ rank, device: null });
    this.ranks = new RanksPanel(pick);
    this.heat = new RankMap(pick);
    const overview = h(
      "div",
      { class: "overview" },
      this.change.element,
      this.before.element,
      findings,
      this.kpis.element,
      this.heat.element,
      this.stack.element,
    );
    const address = addressNote(ADDRESS);
    this.stops.push(address.stop);
    fill(
      this.root,
      stale,
      head,
      address.element,
      ended,
      verdict,
      overview,
      bar,
      this.charts.element,
      this.ranks.element,
      h("div", { class: "panels" }, others, techniques, who, events),
    );
    this.order = new PhoneOrder(this.charts, this.map.element, [overview, bar]);
    this.stops.push(() => this.order.close());
    this.drawAll();
    this.charts.loadFirst();
    this.fetchLast();
    this.fetchLeaks();
    this.map.load();
    this.findBaseline();
    this.timers.push(
      setInterval(() => this.running && (this.charts.get("phases").reload(), this.map.load()), SUMMARY_EVERY_MS),
      setInterval(() => this.charts.reloadStepSamples(), STEP_SAMPLES_EVERY_MS),
    );
    this.drawConnection(store.get());
  }

  /** Opens the page of the error instead, where the run ended with one and the URL asks for no view. */
  leave() {
    const ranOut = this.run.state === "failed" && this.run.oom_records > 0 && /OutOfMemory/.test(this.run.error_type);
    if (!ranOut || location.pathname.endsWith("/memory") || location.search) return false;
    go(`/runs/${encodeURIComponent(this.name)}/oom`, { replace: true });
    return true;
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
    const { clock, smooth, loss } = before;
    if (JSON.stringify({ ...this.view, clock, smooth, loss }) === JSON.stringify(before)) {
      this.charts.redraw(); // the same rows, drawn differently
      return;
    }
    if (!samePlace) {
      this.kpis.clear();
      this.drawHead();
      this.fetchLast();
      this.ranks.draw(this.run, this.view, true);
      this.heat.show(this.run, this.view);
      this.drawFacts();
    }
    const sameAxis = before.x === this.view.x && samePlace;
    clearTimeout(this.zooming);
    // 150 ms after the last change. The previous request is cancelled. The old picture stays until the new one arrives.
    this.zooming = setTimeout(() => this.charts.reload(sameAxis), sameAxis ? 150 : 0);
  }

  onMessage(message) {
    if (message.event === "rows") {
      const { columns } = message.data;
      this.newestTime = Math.max(this.newestTime ?? 0, columns.time_seconds.at(-1));
      if (this.charts.element.hidden) this.showCharts();
      if (columns.step) this.newestStep = Math.max(this.newestStep ?? 0, columns.step.at(-1));
    }
    super.onMessage(message);
  }

  feed(rows) {
    if (rows.rank === this.view.rank && rows.device === this.view.device) this.kpis.feed(rows);
    if (this.drawsLive) {
      this.charts.feed(rows);
      this.map.grow();
    }
    this.root.dataset.lastRow = rows.columns.time_seconds.at(-1);
  }

  /**
   * Takes the run's row of the runs list. Fetches the full run when something changed that the row does not contain.
   */
  takeRow(row) {
    const changed =
      row.state !== this.run.state ||
      row.ranks_reporting !== this.run.ranks_reporting ||
      row.peak_allocated_bytes !== this.run.peak_allocated_bytes ||
      JSON.stringify(row.techniques) !== JSON.stringify(shortWords(this.run.techniques));
    this.run = withRow(this.run, row);
    this.kpis.setRun(this.run, this.place());
    this.drawHead();
    if (changed) this.refresh(row.state !== "running");
    else if (this.run.world_size > 1 || this.refreshing.isDue) this.refresh(false);
  }

  zoom(range) {
    zoomTo(this.view, range);
  }

  /** Fetches the full run again soon. `charts`: their windows too. */
  refresh(charts = true) {
    this.refreshing.want(this.id, { charts });
  }

  takeRun(full, withCharts) {
    this.run = full;
    this.drawAll();
    this.fetchLeaks();
    if (!withCharts) return;
    this.charts.reload();
    this.fetchLast();
  }

  place() {
    return (
      this.places().find((place) => place.rank === this.view.rank && place.device === this.view.device) ??
      this.places()[0]
    );
  }

  /** Fetches the newest values: shown until the first live row, and for ended runs. */
  async fetchLast() {
    const { rank, device } = this.view;
    const isInView = () => !this.closed && rank === this.view.rank && device === this.view.device;
    await this.kpis.fetchLast({ rank, device }, isInView);
  }

  /** Fetches the verdict of the page Leaks for the banner. */
  async fetchLeaks() {
    try {
      const leaks = await api.leaks(this.id, {});
      if (this.closed) return;
      this.leaks = leaks;
      this.drawHead();
    } catch {
      // the banner then says nothing about growth
    }
  }

  async toggleBaseline() {
    try {
      this.run = { ...this.run, baseline: await this.baseline.toggle(this.run) };
      this.drawHead();
      this.findBaseline();
    } catch (error) {
      fill(this.parts.ended, problemBanner(error));
    }
  }

  async findBaseline() {
    if (await this.baseline.find(this.run)) this.drawHead();
  }

  drawAll() {
    this.drawHead();
    fill(
      this.parts.ended,
      endBanner(this.run),
      this.view.missingPlace &&
        h(
          "div",
          { class: "banner warn", role: "status" },
          h("strong", {}, `This run has no ${this.view.missingPlace}.`),
          `Showing rank ${this.view.rank}.`,
        ),
    );
    this.kpis.setRun(this.run, this.place());
    this.drawViewBar();
    this.drawRanks();
    this.drawFacts();
  }

  /** Draws findings, environment, techniques and events where they changed. */
  drawFacts() {
    this.put("who", whoKey(this.run, this.view.rank), () => whoPanel(this.run, this.view.rank));
    const { techniques, findings, state, steps, ended_seconds: ended, events } = this.run;
    const others = othersKey(this.run, this.place());
    this.put("others", [others, state], () => othersPanel(this.run, this.place()));
    this.parts.others.hidden = !others?.length;
    const trained = [techniques, findings, state, steps > 1];
    this.put("findings", trained, () => findingsPanel(this.run));
    this.put("techniques", trained, () => techniquesPanel(this.run));
    this.put("events", [state, ended, events], () => eventsPanel(this.run));
  }

  drawHead() {
    const { run } = this;
    const base = this.baseline.row;
    this.drawTitle(run.name);
    this.put("verdict", verdictKey(run, this.leaks, this.place()), () => runVerdict(run, this.leaks, isOnCpu(this.place())));
    this.change.show(run);
    this.stack.show(run, this.place());
    this.before.show(run, this.place());
    this.showCharts();
    const drawn = this.put(
      "head",
      [headOf(run), base?.run_id, base && peakOf(base), peakOf(run)],
      () =>
        headline(run, {
          onNote: () => this.editNote(),
          base,
          onBaseline: () => this.toggleBaseline(),
          share: () => location.href,
          tab: this.tab,
          deletion: this.deletion,
        }),
    );
    if (drawn) this.drawAge();
  }

  showCharts() {
    this.charts.hideUnknown(this.run, this.place());
    this.parts.bar.hidden = this.charts.element.hidden;
    this.order?.arrange();
  }

  drawViewBar() {
    const places = this.places();
    this.put("bar", [this.view, places.length, this.running], () => {
      this.map.draw();
      this.pauseButton =
        this.running &&
        h(
          "button",
          { class: "button small", type: "button", onclick: togglePause, title: "pause or resume (space)" },
          store.get().paused ? "Resume" : "Pause",
        );
      return [
        viewBar(this.view, places, {
          onAll: () => this.zoom(null),
          onAxis: (x) => setAxis(this.view, x),
          words: (value) => placeInWords(this.view, this.zero, value),
        }),
        this.pauseButton,
      ];
    });
  }

  drawRanks() {
    this.ranks.draw(this.run, this.view);
    this.heat.show(this.run, this.view);
  }

  /** Dims the charts while the server does not answer. */
  drawConnection(state) {
    this.charts.element.classList.toggle("stale", this.isStale(state));
    if (this.pauseButton) this.pauseButton.textContent = state.paused ? "Resume" : "Pause";
    super.drawConnection(state);
  }
}

export const open = opens(MemoryPage);
