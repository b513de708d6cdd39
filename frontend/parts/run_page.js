/**
 * What the pages of one run have in common: they ask for the run, say so where there is none, draw its head, its age and how
 * it ended, listen to what comes live, tell when the server is away, and end all that when they are left.
 *
 * A page extends RunPage, exports `open = opens(ItsClass)`, and says what is its own:
 *
 *   tab, subject      its tab in the head; its words in the window's title, if others
 *   fetch(name)       what it wants besides the run, asked for at the same time
 *   isUnknown(error)  whether a refusal means that there is no such run; others are shown, with wayOn() below
 *   build()           the run is there: divide() the page into parts and fill `root`
 *   actions()         the keys that it answers
 *   askAfter          the live event after which it asks again (as it does after a resync); and
 *   askIfChanged      what of the run, once it is another, makes it ask again
 *   again()           asks again, and draws
 *   drawRun()         something about the run is new
 *   feed(rows)        live rows, unless the drawing is paused
 *   update()          for frame.js: the URL has changed; without an `id` there is nothing to draw yet
 *   close()           ends what it began itself, and super.close()
 *
 * What it gets: `root`, `name` (the run, as the URL has it), `run` and `id`, `parts` and put() to draw them, `stops` and
 * `timers` that end with the page, refresh() to ask again soon, and `closed`, to be looked at after each wait. Its
 * parts hold "head", "ended" and, unless drawConnection() is its own, "stale".
 */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { onAction } from "vramscope/keys.js";
import { anchored, subscribe } from "vramscope/live.js";
import * as unknownPage from "vramscope/pages/unknown.js";
import { problemBanner, staleBanner } from "vramscope/parts/ui.js";
import { RunDeletion } from "vramscope/parts/run_deletion.js";
import { drawAge, endBanner, headline } from "vramscope/parts/run_head.js";
import { store } from "vramscope/store.js";

const REFRESH_DELAY_MS = 150;
/** On a narrow screen the tabs scroll: the one that is open is in sight. */
export function scrollToOpenTab(head) {
  const tabs = head.querySelector(".tabs");
  const tab = tabs?.querySelector("[aria-current]");
  if (tab) tabs.scrollLeft = tab.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;
}

/** What of a run its head tells. */
const IN_THE_HEAD = [
  "name",
  "state",
  "steps",
  "baseline",
  "tags",
  "framework",
  "ranks_reporting",
  "techniques",
  "leak_count",
  "profiles",
  "recordings",
  "oom_records",
  "out_of_memory_count",
];

/** A run in full with what is new in its row of the list. What the row has less of stays: leaks, errors and techniques themselves. */
export function withRow(run, { leaks, out_of_memory: errors, techniques, ...rest }) {
  return { ...run, ...rest, leak_count: leaks, out_of_memory_count: errors };
}

/** What of a run its head tells: where that is the same, the head is. */
export const headOf = (run) => IN_THE_HEAD.map((name) => run[name]);

/** The `open` of a page's module. A page begins when all its fields are there, not in its constructor. */
export const opens =
  (Page) =>
  (root, { run }) => {
    const page = new Page(root, run);
    page.start();
    return page;
  };

export class RunPage {
  parts = {};
  stops = [];
  timers = [];
  keys = new Map(); // what each part was last drawn from
  preloadsPlotly = true; // Plotly is on its way before the first answer
  refreshAfter = null;
  refreshIfChanged = [];

  constructor(root, name) {
    this.root = root;
    this.name = name;
  }

  get subject() {
    return this.tab;
  }

  fetch() {}

  isUnknown(error) {
    return error.status === 404;
  }

  errorAction() {
    return null;
  }

  actions() {
    return {};
  }

  async refetch() {}

  drawRun() {
    this.drawHead();
  }

  feed() {}

  start() {
    this.drawTitle(this.name);
    fill(this.root, h("p", { class: "muted" }, "loading…"));
    if (this.preloadsPlotly) loadPlotly().catch(() => {});
    this.begin();
  }

  async begin() {
    try {
      [this.run] = await Promise.all([api.run(this.name), this.fetch(this.name), anchored()]);
    } catch (error) {
      if (this.closed || error.status === 401) return;
      if (this.isUnknown(error))
        this.inner = unknownPage.open(this.root, { path: `/runs/${encodeURIComponent(this.name)}`, problem: error });
      else fill(this.root, problemBanner(error), this.errorAction());
      return;
    }
    if (this.closed) return;
    this.id = this.run.run_id;
    this.deletion = new RunDeletion(this.id);
    this.build();
    this.stops.push(
      subscribe([this.id], (message) => this.onMessage(message)),
      store.watch((state) => this.drawConnection(state)),
      ...Object.entries(this.actions()).map(([name, answer]) => onAction(name, answer)),
    );
    this.timers.push(setInterval(() => this.drawAge(), 1000));
  }

  close() {
    this.closed = true;
    this.inner?.close();
    for (const stop of this.stops) stop();
    this.timers.forEach(clearInterval);
    clearTimeout(this.waiting);
  }

  /** How files of this run are called. */
  get file() {
    return this.run.name.replace(/[^\w.-]+/g, "_");
  }

  /** Empty parts of these names, for put(). */
  divide(...names) {
    this.parts = Object.fromEntries(names.map((name) => [name, h("div")]));
    return this.parts;
  }

  /** Draw a part anew only where what it shows is new: focus and selection stay. Says whether it did. */
  put(name, from, make) {
    const key = JSON.stringify(from) ?? "";
    if (this.keys.get(name) === key) return false;
    this.keys.set(name, key);
    fill(this.parts[name], make());
    return true;
  }

  onMessage({ event, data }) {
    if (event === "resync" || event === this.refreshAfter) this.refresh();
    else if (event === "run" && data.run_id === this.id) this.takeRow(data);
    else if (event === "rows" && !store.get().paused) this.feed(data);
  }

  /** A row of the runs list: the run's own numbers. */
  takeRow(row) {
    const before = this.run;
    this.run = withRow(before, row);
    this.drawRun();
    if (this.refreshIfChanged.some((name) => this.run[name] !== before[name])) this.refresh();
  }

  /** Ask again, soon: once for all that comes at the same time. */
  refresh(wait = REFRESH_DELAY_MS) {
    if (this.waiting) return;
    this.waiting = setTimeout(async () => {
      this.waiting = null;
      try {
        await this.refetch();
      } catch {
        // the connection's state tells it
      }
    }, wait);
  }

  isStale({ live }) {
    return live.state === "stale" && this.run.state === "running";
  }

  /** What came while the drawing was paused is fetched afterwards. */
  drawConnection(state) {
    const { live, paused } = state;
    const stale = this.isStale(state);
    this.put("stale", stale && live.staleSince, () => stale && staleBanner(live));
    if (this.wasPaused && !paused) this.refresh();
    this.wasPaused = paused;
  }

  drawTitle(name) {
    document.title = `${name}${this.subject ? `: ${this.subject}` : ""} · vramscope`;
  }

  drawHead() {
    const { run } = this;
    this.drawTitle(run.name);
    if (
      this.put("head", headOf(run), () =>
        headline(run, { share: () => location.href, tab: this.tab, deletion: this.deletion }),
      )
    )
      scrollToOpenTab(this.parts.head);
    this.drawAge();
    this.drawEnd();
  }

  drawAge() {
    drawAge(this.parts.head, this.run);
  }

  drawEnd() {
    const { run } = this;
    this.put("ended", [run.state, run.error_type, run.error_line], () => endBanner(run));
  }
}
