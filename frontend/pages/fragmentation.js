/** Fragmentation of one run: what its recordings show, moment by moment, and what other allocator settings would have given. */

import { api } from "vramscope/api.js";
import { chart, loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { onAction } from "vramscope/keys.js";
import { anchored, subscribe } from "vramscope/live.js";
import { figuresOf, momentBar } from "vramscope/parts/moment_bar.js";
import { problemBanner, staleBanner } from "vramscope/parts/pieces.js";
import { nothingRecorded, recordingBar } from "vramscope/parts/recording_bar.js";
import { drawAge, endBanner, headline } from "vramscope/parts/run_head.js";
import { SegmentMap } from "vramscope/parts/segment_map.js";
import { WhatIf } from "vramscope/parts/whatif.js";
import { setQuery, store } from "vramscope/store.js";
import * as unknownPage from "vramscope/pages/unknown.js";

const AT_ONCE_MS = 150;
const MOVING_MS = 60; // while the slider is dragged, the map follows so often
const FRAMES = 150; // of a recording that is played

class FragmentationPage {
  stops = [];
  keys = new Map();

  constructor(root, name) {
    this.root = root;
    this.name = name;
    document.title = `${name}: fragmentation · vramscope`;
    fill(root, h("p", { class: "muted" }, "loading…"));
    loadPlotly().catch(() => {});
    this.begin();
  }

  async begin() {
    try {
      [this.run, this.list] = await Promise.all([api.run(this.name), api.recordings(this.name), anchored()]);
    } catch (error) {
      if (this.closed || error.status === 401) return;
      if (error.status === 404) this.inner = unknownPage.open(this.root, { path: `/runs/${encodeURIComponent(this.name)}`, problem: error });
      else fill(this.root, problemBanner(error));
      return;
    }
    if (this.closed) return;
    this.id = this.run.run_id;
    this.view = this.readView();
    this.build();
    this.show();
    this.stops.push(
      subscribe([this.id], (message) => this.hear(message)),
      store.watch((state) => this.drawConnection(state)),
      onAction("escape", () => setQuery({ from: null, to: null })),
      onAction("back", () => this.step(-1)),
      onAction("on", () => this.step(1)),
    );
    this.clock = setInterval(() => drawAge(this.parts.head, this.run), 1000);
  }

  close() {
    this.closed = true;
    this.inner?.close();
    this.whatIf?.close();
    for (const stop of this.stops) stop();
    clearInterval(this.clock);
    clearTimeout(this.waiting);
    clearTimeout(this.moving);
    clearTimeout(this.playing);
  }

  /** The view, as the URL has it: recording, event (null: the peak), and the part of the map. */
  readView() {
    const { recording, event, from, to } = store.get().query;
    const whole = (text) => (text !== undefined && /^-?\d+$/.test(text) ? Number(text) : null);
    return { recording: recording ?? null, event: whole(event), from: whole(from), to: whole(to) };
  }

  /** The recording that is shown: the one chosen, else the newest that is whole. */
  get chosen() {
    const wholes = this.list.recordings.filter((recording) => recording.whole);
    return wholes.find((recording) => recording.recording === this.view.recording) ?? wholes[0] ?? null;
  }

  build() {
    const names = ["stale", "head", "ended", "bar", "trouble", "figures", "whatif", "moment", "empty"];
    this.parts = Object.fromEntries(names.map((name) => [name, h("div")]));
    const file = this.run.name.replace(/[^\w.-]+/g, "_");
    this.strip = chart({
      title: "Where reserved memory was",
      file: `${file}-strip`,
      load: async (signal) => {
        const answer = await api.recording(this.shown, "strip", { points: this.strip.points }, signal);
        this.atPeak = answer.peak;
        this.drawFigures();
        return answer;
      },
      onPlace: (place, how) => how === "click" && this.goTo(Math.round(place.x)),
      onDrawn: () => this.strip.showCursor(this.event),
    });
    this.strip.classList.add("wide", "strip");
    this.strip.dataset.figure = "strip";
    this.map = new SegmentMap({
      file: `${file}-segments`,
      load: (part, parameters, signal) => api.recording(this.shown, part, { event: this.event, ...parameters }, signal),
      view: () => ({ from: this.view.from, to: this.view.to }),
      onView: (range) => setQuery(range ?? { from: null, to: null }),
    });
    this.sizes = chart({
      title: "Size classes",
      file: `${file}-sizes`,
      load: (signal) => api.recording(this.shown, "sizes", { event: this.event }, signal),
    });
    this.sizes.dataset.figure = "sizes";
    this.live = chart({
      title: "Free in what is reserved, as the sampler saw it",
      file: `${file}-fragmentation`,
      load: (signal) => api.figure(this.id, "fragmentation", { points: this.live.points }, signal),
      live: (message) => (message.stream === "samples" && message.rank === (this.run.ranks[0]?.rank ?? 0) ? message.columns.time_seconds.map((at) => at - this.run.started_seconds) : null),
    });
    this.live.dataset.figure = "fragmentation";
    this.live.classList.add("wide");
    this.whatIf = new WhatIf({ onEvent: (event) => this.goTo(event) });
    const { stale, head, ended, bar, trouble, figures, whatif, moment, empty } = this.parts;
    this.recorded = h("div", {}, figures, h("div", { class: "charts" }, this.strip), whatif, moment, h("div", { class: "charts" }, this.map.element, this.sizes));
    fill(whatif, this.whatIf.element);
    fill(this.root, stale, head, ended, bar, trouble, empty, this.recorded, h("div", { class: "charts fragmentation-live" }, this.live));
    this.drawHead();
  }

  update() {
    if (!this.id) return;
    const before = this.view;
    this.view = this.readView();
    if (before.recording !== this.view.recording) this.show();
    else {
      if (before.event !== this.view.event) this.moveTo(this.view.event ?? this.told?.peak_event ?? -1);
      else if (before.from !== this.view.from || before.to !== this.view.to) this.map.reload();
      this.draw();
    }
  }

  /** Show the chosen recording from its beginning. */
  async show() {
    const chosen = this.chosen;
    this.shown = chosen?.recording ?? null;
    this.atPeak = null;
    this.draw();
    this.recorded.hidden = !chosen;
    if (!chosen) return;
    try {
      this.told = null;
      const told = await api.recording(this.shown, "moments");
      if (this.closed || told.recording !== this.shown) return;
      this.told = told;
      this.event = Math.min(this.view.event ?? told.peak_event, told.events - 1);
      fill(this.parts.trouble);
      this.draw();
      for (const element of [this.strip, this.map, this.sizes]) element.reload();
      this.whatIf.begin(told);
    } catch (error) {
      if (this.closed) return;
      this.recorded.hidden = true;
      fill(this.parts.trouble, problemBanner(error));
    }
  }

  /** To a moment, at once: what the slider, the strip and the buttons do. */
  goTo(event) {
    if (!this.told) return;
    const at = Math.max(-1, Math.min(this.told.events - 1, event));
    setQuery({ event: at === this.told.peak_event ? null : at });
  }

  moveTo(event) {
    if (!this.told || event === this.event) return;
    this.event = Math.max(-1, Math.min(event, this.told.events - 1));
    this.strip.showCursor(this.event);
    if (this.moving) return;
    this.moving = setTimeout(() => {
      this.moving = null;
      this.map.reload();
      this.sizes.reload();
    }, MOVING_MS);
  }

  /** To where the next step begins, or the one before. */
  step(by) {
    if (!this.told) return;
    const starts = this.told.steps.map((step) => step.event);
    const next = by > 0 ? starts.find((at) => at > this.event) : starts.findLast((at) => at < this.event);
    if (next !== undefined) this.goTo(next);
  }

  /** From here to the end, or from the beginning; again: stop. */
  play() {
    if (!this.told) return;
    this.isPlaying = !this.isPlaying;
    clearTimeout(this.playing);
    if (this.isPlaying && this.event >= this.told.events - 1) this.goTo(-1);
    const next = async () => {
      if (this.closed || !this.isPlaying) return;
      if (this.event >= this.told.events - 1) {
        this.isPlaying = false;
        this.drawMoment();
        return;
      }
      this.goTo(this.event + Math.max(1, Math.round(this.told.events / FRAMES)));
      await this.map.settled();
      this.playing = setTimeout(next, MOVING_MS);
    };
    this.drawMoment();
    if (this.isPlaying) next();
  }

  hear({ event, data }) {
    if (event === "recording" || event === "resync") this.refresh();
    else if (event === "run" && data.run_id === this.id) {
      const { leaks, ...rest } = data;
      const more = rest.recordings !== this.run.recordings;
      this.run = { ...this.run, ...rest, leak_count: leaks };
      this.drawHead();
      this.drawBar();
      if (more) this.refresh();
    } else if (event === "rows" && !store.get().paused) this.live.feed(data);
  }

  /** Which recordings there are, anew. A new one is shown if none was chosen. */
  refresh() {
    if (this.waiting) return;
    this.waiting = setTimeout(async () => {
      this.waiting = null;
      try {
        this.list = await api.recordings(this.id);
        if (this.closed) return;
        if (this.chosen?.recording !== this.shown) {
          this.asked = false;
          this.show();
        } else this.draw();
      } catch {
        // the connection's state tells it
      }
    }, AT_ONCE_MS);
  }

  async ask() {
    try {
      await api.askForRecording(this.id, {});
      this.asked = true;
      fill(this.parts.trouble);
    } catch (error) {
      fill(this.parts.trouble, problemBanner(error));
    }
    this.draw();
  }

  async remove(recording) {
    if (!confirm("Delete this recording? It cannot be had again.")) return;
    try {
      await api.deleteRecording(recording);
      setQuery({ recording: null, event: null, from: null, to: null });
      this.refresh();
    } catch (error) {
      fill(this.parts.trouble, problemBanner(error));
    }
  }

  drawConnection({ live, paused }) {
    const stale = live.state === "stale" && this.run.state === "running";
    this.put("stale", stale && live.staleSince, () => stale && staleBanner(live));
    if (this.wasPaused && !paused) this.refresh();
    this.wasPaused = paused;
  }

  draw() {
    this.drawHead();
    this.drawBar();
    this.put("empty", [this.list.recordings, this.run.state, this.run.ranks.length], () => !this.chosen && nothingRecorded(this.run, this.list.recordings));
    this.drawFigures();
    this.drawMoment();
  }

  drawBar() {
    const { recordings } = this.list;
    const several = this.run.ranks.length > 1;
    this.put("bar", [recordings, this.shown, this.run.state, this.asked, several], () =>
      recordingBar(recordings, {
        chosen: this.shown,
        several,
        live: this.run.state === "running",
        asked: this.asked,
        onChoose: (recording) => setQuery({ recording, event: null, from: null, to: null }, { push: true }),
        onAsk: () => this.ask(),
        onDelete: (recording) => this.remove(recording),
      }));
  }

  drawFigures() {
    this.put("figures", [this.told, this.atPeak], () => this.told && figuresOf(this.told, this.atPeak));
  }

  drawMoment() {
    const bar = { event: this.event, playing: Boolean(this.isPlaying) };
    if (!this.told) return;
    if (this.momentOf !== this.told) {
      this.momentOf = this.told;
      this.momentBar = momentBar(this.told, { onEvent: (event) => this.goTo(event), onPlay: () => this.play() });
      fill(this.parts.moment, this.momentBar.element);
    }
    this.momentBar.draw(bar);
  }

  drawHead() {
    const { run } = this;
    document.title = `${run.name}: fragmentation · vramscope`;
    this.put("head", [run.name, run.state, run.steps, run.baseline, run.tags, run.leak_count, run.recordings, run.ranks_reporting], () => headline(run, { share: () => location.href, tab: "fragmentation" }));
    drawAge(this.parts.head, run);
    this.put("ended", [run.state, run.error_type, run.error_line], () => endBanner(run));
  }

  /** Draw a part anew only where what it shows is new. */
  put(name, from, make) {
    const key = JSON.stringify(from);
    if (this.keys.get(name) === key) return;
    this.keys.set(name, key);
    fill(this.parts[name], make());
  }
}

export const open = (root, { run }) => new FragmentationPage(root, run);
