/** Page of a run's leaks: verdict, memory after each step, holders, and fixes. Live. */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { leakDetail } from "vramscope/parts/leak_detail.js";
import { figures, headKey, omissions, scansThatRan, verdictBanner } from "vramscope/parts/leak_verdict.js";
import { leaksTable, sortedLeaks } from "vramscope/parts/leaks_table.js";
import { ChartsFirst } from "vramscope/parts/phone_order.js";
import { TableSort } from "vramscope/parts/table_sort.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { RunPage, opens } from "vramscope/parts/run_page.js";
import { placeChoice, placesOf, readWindow } from "vramscope/parts/view_bar.js";
import { setQuery, store } from "vramscope/store.js";

const REFRESH_MS = 10_000; // interval of a new fit while the run is live; new scans are shown without delay

class LeaksPage extends RunPage {
  tab = "leaks";
  refreshAfter = "scan";
  refreshIfChanged = ["state", "recordings"];
  sort = new TableSort(() => this.draw());
  replays = new Map(); // leak id -> {recordings, result}: newest replay, and the number of recordings when it was requested

  async fetch(name) {
    this.view = this.readView();
    this.report = await api.leaks(name, this.view.query);
  }

  isUnknown(error) {
    return error.status === 404 && error.field !== "rank" && error.field !== "device";
  }

  errorAction() {
    return h(
      "a",
      { class: "button", href: location.pathname, onclick: () => setTimeout(() => this.begin()) },
      "Show the data that exists",
    );
  }

  actions() {
    return {
      escape: () => setQuery({ from: null, to: null }),
      follow: () => setQuery({ from: null, to: null, paused: null }),
      back: () => this.choose(-1),
      on: () => this.choose(1),
      export: (event) => this.floor.export("csv", event ?? { target: this.floor.querySelector(".menu-item") }),
    };
  }

  close() {
    super.close();
    clearTimeout(this.zooming);
  }

  /** View of the URL: range of steps, chosen leak, rank and device. */
  readView() {
    const { leak, rank, device, ...query } = store.get().query;
    const [first, end] = readWindow(query);
    return { from: first, to: end, leak: leak ?? null, query: { rank, device, from: first, to: end } };
  }

  build() {
    const {
      stale,
      head,
      ended,
      verdict,
      left,
      figures: strip,
      bar,
      table,
      detail,
    } = this.divide("stale", "head", "ended", "verdict", "left", "figures", "bar", "table", "detail");
    verdict.setAttribute("aria-live", "polite");
    this.floor = chart({
      title: "Memory after each step",
      file: `${this.file}-floor`,
      load: (signal) =>
        api.figure(this.id, "floor", { ...this.view.query, x: "step", points: this.floor.points }, signal),
      live: (message) =>
        message.stream === "steps" &&
        message.rank === this.report.floor.rank &&
        message.device === this.report.floor.device
          ? message.columns.step
          : null,
      view: () => ({ from: this.view.from, to: this.view.to }),
      onZoom: (range) =>
        setQuery(
          range ? { from: Math.max(0, Math.round(range.from)), to: Math.round(range.to) } : { from: null, to: null },
        ),
    });
    this.floor.dataset.figure = "floor";
    this.floor.classList.add("wide");
    bar.className = "view-bar";
    this.grid = h("div", { class: "charts" }, this.floor);
    const around = h("div", { class: "around-charts" }, table, detail, strip);
    fill(this.root, stale, head, ended, verdict, left, around, bar, this.grid);
    this.order = new ChartsFirst(this.grid, [around, bar]);
    this.stops.push(() => this.order.close());
    this.draw();
    this.timers.push(
      setInterval(
        () => this.run.state === "running" && !document.hidden && !store.get().paused && this.refresh(0),
        REFRESH_MS,
      ),
    );
  }

  update() {
    if (!this.id) return;
    const before = this.view;
    this.view = this.readView();
    const same = JSON.stringify(before.query) === JSON.stringify(this.view.query);
    this.draw();
    if (same) return;
    clearTimeout(this.zooming);
    this.zooming = setTimeout(() => this.refresh(0), 150);
  }

  async refetch() {
    try {
      const [run, report] = await Promise.all([api.run(this.id), api.leaks(this.id, this.view.query)]);
      if (this.closed) return;
      [this.run, this.report] = [run, report];
      this.draw();
      this.floor.reload();
    } catch (error) {
      // the stale banner reports a lost connection; a view that does not exist is reported here
      if (error.status === 404) fill(this.parts.ended, problemBanner(error));
    }
  }

  feed(rows) {
    if (this.view.from === null) this.floor.feed(rows);
  }

  drawConnection(state) {
    this.grid.classList.toggle("stale", this.isStale(state));
    super.drawConnection(state);
  }

  get chosen() {
    return this.report.leaks.find((leak) => leak.id === this.view.leak) ?? this.report.leaks[0] ?? null;
  }

  /** Chooses another leak of the table: the next one, or the one before. */
  choose(by) {
    const leaks = sortedLeaks(this.report.leaks, this.sort);
    const next = leaks[leaks.indexOf(this.chosen) + by];
    if (next) setQuery({ leak: next.id });
  }

  draw() {
    const { report } = this;
    const several = this.run.ranks.length > 1;
    this.drawHead();
    this.put("verdict", headKey(report), () => verdictBanner(report));
    this.put(
      "left",
      report.scans.map((scan) => scan.not_scanned),
      () => omissions(report.scans),
    );
    this.put("figures", [report, Math.floor(Date.now() / 5_000)], () => figures(report));
    this.put(
      "table",
      [report.leaks, this.chosen?.id, several, this.sort.state],
      () =>
        report.leaks.length > 0 &&
        leaksTable(report.leaks, {
          run: this.id,
          chosen: this.chosen.id,
          several,
          sort: this.sort,
          onChoose: (id) => setQuery({ leak: id }),
        }),
    );
    const replay = this.chosen && this.replayOf(this.chosen);
    this.put(
      "detail",
      [this.chosen, several, replay],
      () => this.chosen && leakDetail(this.chosen, { several, replay, run: this.id }),
    );
    this.put("bar", [this.view, this.run.ranks.length, report.floor.rank, report.floor.device], () => this.bar());
    this.showKnown();
  }

  /** Before the first step the verdict says all that is known. */
  showKnown() {
    const { leaks, scans } = this.report;
    const isEarly = !(this.run.steps > 0) && leaks.length === 0 && scansThatRan(scans).length === 0;
    this.parts.figures.hidden = this.grid.hidden = isEarly;
  }

  drawRun() {
    super.drawRun();
    this.showKnown();
  }

  /**
   * Predicted effect of a leak's fix, by replay. Null until the answer arrives, which is then drawn.
   * Requested again when the number of recordings changes. The previous effect is shown until then.
   */
  replayOf(leak) {
    const { recordings } = this.run;
    const before = this.replays.get(leak.id);
    if (before?.recordings === recordings) return before.report;
    const entry = { recordings, report: before?.report?.effect ? before.report : null };
    this.replays.set(leak.id, entry);
    api
      .leakReplay(this.id, leak.id)
      .catch((error) => ({ problem: error.message }))
      .then((report) => {
        entry.report = report;
        if (!this.closed && this.replays.get(leak.id) === entry) this.draw();
      });
    return entry.report;
  }

  bar() {
    const places = placesOf(this.run);
    const { from, to } = this.view;
    this.parts.bar.hidden = places.length < 2 && from === null;
    return [
      placeChoice(places, this.report.floor, { label: "Rank", quiet: true }),
      h("span", { class: "spring" }),
      from !== null &&
        h(
          "button",
          {
            class: "chip zoom-chip",
            type: "button",
            onclick: () => setQuery({ from: null, to: null }),
            title: "reset the zoom (Esc)",
          },
          `steps ${count(from)} – ${to === null ? "newest" : count(to)}  ✕`,
        ),
    ];
  }

  /** Draws a part and restores the focus of a leak. */
  put(name, from, make) {
    const focused = this.parts[name].contains(document.activeElement)
      ? document.activeElement.closest("[data-leak]")?.dataset.leak
      : null;
    const drawn = super.put(name, from, make);
    if (drawn && focused) this.parts[name].querySelector(`[data-leak="${focused}"] button`)?.focus();
    return drawn;
  }
}

export const open = opens(LeaksPage);
