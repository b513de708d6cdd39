/** The leaks of one run: the verdict, the floor against steps, who holds what, and the fix. Live. */

import { api } from "vramscope/api.js";
import { chart, loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { onAction } from "vramscope/keys.js";
import { anchored, subscribe } from "vramscope/live.js";
import { leakDetail } from "vramscope/parts/leak_detail.js";
import { figures, omissions, verdictBanner } from "vramscope/parts/leak_verdict.js";
import { leaksTable } from "vramscope/parts/leaks_table.js";
import { problemBanner, staleBanner } from "vramscope/parts/pieces.js";
import { drawAge, endBanner, headline } from "vramscope/parts/run_head.js";
import { placeChoice, placesOf, readWindow } from "vramscope/parts/view_bar.js";
import { setQuery, store } from "vramscope/store.js";
import * as unknownPage from "vramscope/pages/unknown.js";

const AGAIN_MS = 10_000; // while it runs, the fit is made anew so often; a look is shown at once
const AT_ONCE_MS = 150;

class LeaksPage {
  stops = [];
  keys = new Map(); // what each part was last drawn from

  constructor(root, name) {
    this.root = root;
    this.name = name;
    document.title = `${name}: leaks · vramscope`;
    fill(root, h("p", { class: "muted" }, "loading…"));
    loadPlotly().catch(() => {});
    this.begin();
  }

  async begin() {
    try {
      this.view = this.readView();
      [this.run, this.told] = await Promise.all([api.run(this.name), api.leaks(this.name, this.view.query), anchored()]);
    } catch (error) {
      if (this.closed || error.status === 401) return;
      if (error.status === 404 && error.field !== "rank" && error.field !== "device") {
        this.inner = unknownPage.open(this.root, { path: `/runs/${encodeURIComponent(this.name)}`, problem: error });
        return;
      }
      fill(this.root, problemBanner(error), h("a", { class: "button", href: location.pathname, onclick: () => setTimeout(() => this.begin()) }, "Show what there is"));
      return;
    }
    if (this.closed) return;
    this.id = this.run.run_id;
    this.build();
    this.stops.push(
      subscribe([this.id], (message) => this.hear(message)),
      store.watch((state) => this.drawConnection(state)),
      onAction("escape", () => setQuery({ from: null, to: null })),
      onAction("follow", () => setQuery({ from: null, to: null })),
      onAction("back", () => this.choose(-1)),
      onAction("on", () => this.choose(1)),
      onAction("export", (event) => this.floor.export("csv", event ?? { target: this.floor.querySelector(".menu-item") })),
    );
    this.clock = setInterval(() => drawAge(this.parts.head, this.run), 1000);
    this.timer = setInterval(() => this.run.state === "running" && !document.hidden && !store.get().paused && this.refresh(0), AGAIN_MS);
  }

  close() {
    this.closed = true;
    this.inner?.close();
    for (const stop of this.stops) stop();
    clearInterval(this.clock);
    clearInterval(this.timer);
    clearTimeout(this.waiting);
    clearTimeout(this.zooming);
  }

  /** The view, as the URL has it: steps from and to, the chosen leak, rank and device. */
  readView() {
    const { leak, rank, device, ...query } = store.get().query;
    const [first, end] = readWindow(query);
    return { from: first, to: end, leak: leak ?? null, query: { rank, device, from: first, to: end } };
  }

  build() {
    this.parts = Object.fromEntries(["stale", "head", "ended", "verdict", "left", "figures", "bar", "table", "detail"].map((name) => [name, h("div")]));
    this.parts.verdict.setAttribute("aria-live", "polite");
    this.floor = chart({
      title: "The floor: in use when a step has ended",
      file: `${this.run.name.replace(/[^\w.-]+/g, "_")}-floor`,
      load: (signal) => api.figure(this.id, "floor", { ...this.view.query, x: "step", points: this.floor.points }, signal),
      live: (message) => (message.stream === "steps" && message.rank === this.told.floor.rank && message.device === this.told.floor.device ? message.columns.step : null),
      view: () => ({ from: this.view.from, to: this.view.to }),
      onZoom: (range) => setQuery(range ? { from: Math.max(0, Math.round(range.from)), to: Math.round(range.to) } : { from: null, to: null }),
    });
    this.floor.dataset.figure = "floor";
    this.floor.classList.add("wide");
    const { stale, head, ended, verdict, left, figures: strip, bar, table, detail } = this.parts;
    bar.className = "view-bar";
    this.grid = h("div", { class: "charts" }, this.floor);
    fill(this.root, stale, head, ended, verdict, left, strip, bar, this.grid, table, detail);
    this.draw();
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

  /** Ask again, soon: once for all that comes at the same time. */
  refresh(wait) {
    if (this.waiting) return;
    this.waiting = setTimeout(async () => {
      this.waiting = null;
      try {
        const [run, told] = await Promise.all([api.run(this.id), api.leaks(this.id, this.view.query)]);
        if (this.closed) return;
        [this.run, this.told] = [run, told];
        this.draw();
        this.floor.reload();
      } catch (error) {
        // a lost connection is told in the bar; what the view asks for and is not there, here
        if (error.status === 404) fill(this.parts.ended, problemBanner(error));
      }
    }, wait);
  }

  hear({ event, data }) {
    if (event === "look" || event === "resync") this.refresh(AT_ONCE_MS);
    else if (event === "run" && data.run_id === this.id) {
      const { leaks, ...rest } = data; // how many; the run in full has the leaks themselves under this name
      const ended = rest.state !== this.run.state;
      this.run = { ...this.run, ...rest, leak_count: leaks };
      this.drawHead();
      if (ended) this.refresh(AT_ONCE_MS);
    } else if (event === "rows" && !store.get().paused && this.view.from === null) this.floor.feed(data);
  }

  /** What came while the drawing was paused, or the server away, is fetched afterwards. */
  drawConnection({ live, paused }) {
    const stale = live.state === "stale" && this.run.state === "running";
    this.grid.classList.toggle("stale", stale);
    this.put("stale", stale && live.staleSince, () => stale && staleBanner(live));
    if (this.wasPaused && !paused) this.refresh(AT_ONCE_MS);
    this.wasPaused = paused;
  }

  get chosen() {
    return this.told.leaks.find((leak) => leak.id === this.view.leak) ?? this.told.leaks[0] ?? null;
  }

  /** The next leak of the table, or the one before. */
  choose(by) {
    const { leaks } = this.told;
    const next = leaks[leaks.indexOf(this.chosen) + by];
    if (next) setQuery({ leak: next.id });
  }

  draw() {
    const { told } = this;
    const several = this.run.ranks.length > 1;
    this.drawHead();
    this.put("verdict", told.verdict, () => verdictBanner(told.verdict));
    this.put("left", told.looks.map((look) => look.not_looked_at), () => omissions(told.looks));
    this.put("figures", [told, Math.floor(Date.now() / 5_000)], () => figures(told));
    this.put("table", [told.leaks, this.chosen?.id, several], () => told.leaks.length > 0 && leaksTable(told.leaks, { chosen: this.chosen.id, several, onChoose: (id) => setQuery({ leak: id }) }));
    this.put("detail", [this.chosen, several], () => this.chosen && leakDetail(this.chosen, { several }));
    this.put("bar", [this.view, this.run.ranks.length, told.floor.rank, told.floor.device], () => this.bar());
  }

  drawHead() {
    const { run } = this;
    document.title = `${run.name}: leaks · vramscope`;
    this.put("head", [run.name, run.state, run.steps, run.baseline, run.tags, run.leak_count, run.recordings, run.ranks_reporting], () => headline(run, { share: () => location.href, tab: "leaks" }));
    drawAge(this.parts.head, run);
    this.put("ended", [run.state, run.error_type, run.error_line], () => endBanner(run));
  }

  bar() {
    const places = placesOf(this.run);
    const { from, to } = this.view;
    this.parts.bar.hidden = places.length < 2 && from === null;
    return [
      placeChoice(places, this.told.floor, { label: "Floor of", quiet: true }),
      h("span", { class: "spring" }),
      from !== null && h("button", { class: "chip zoom-chip", type: "button", onclick: () => setQuery({ from: null, to: null }), title: "see all again (Esc)" }, `steps ${count(from)} – ${to === null ? "newest" : count(to)}  ✕`),
    ];
  }

  /** Draw a part anew only where what it shows is new: focus and selection stay. */
  put(name, from, make) {
    const key = JSON.stringify(from);
    if (this.keys.get(name) === key) return;
    this.keys.set(name, key);
    const held = this.parts[name].contains(document.activeElement) ? document.activeElement.closest("[data-leak]")?.dataset.leak : null;
    fill(this.parts[name], make());
    if (held) this.parts[name].querySelector(`[data-leak="${held}"] button`)?.focus();
  }
}

export const open = (root, { run }) => new LeaksPage(root, run);
