/**
 * Base of the pages of a run. It fetches the run, reports an unknown one, draws its head, age and end, receives live
 * events, reports a lost connection, and releases everything when the page is left.
 *
 * A page extends RunPage, exports `open = opens(ItsClass)`, and defines:
 *
 *   tab, subject      its tab in the head; its words in the window's title, if others
 *   fetch(name)       requests in parallel with that of the run
 *   isUnknown(error)  whether a refusal means that the run does not exist. Other refusals are shown, with errorAction()
 *   errorAction()     an element below a refusal, or null
 *   leave()           whether it opened another page instead, now that the run is known
 *   build()           called when the run is known: calls divide() and fills `root`
 *   actions()         handlers of its keys
 *   refreshAfter      live event after which it refreshes (as after a resync)
 *   refreshIfChanged  fields of the run whose change makes it refresh
 *   refetch()         fetches its data again and draws them
 *   drawRun()         called when the run changed
 *   feed(rows)        takes live rows, unless drawing is paused
 *   update()          called by frame.js when the URL changes; nothing to draw while there is no `id`
 *   close()           releases its own resources and calls super.close()
 *
 * It inherits `root`, `name` (the run in the URL), `run`, `id`, `parts` and put() to draw them, `stops` and `timers`
 * that end with the page, refresh(), and `closed`, to be checked after each await. Its parts include "head", "ended"
 * and, unless it overrides drawConnection(), "stale".
 */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { onAction } from "vramscope/keys.js";
import { anchored, subscribe } from "vramscope/live.js";
import * as unknownPage from "vramscope/pages/unknown.js";
import { problemBanner, staleBanner } from "vramscope/parts/ui.js";
import { editNote } from "vramscope/parts/note_editor.js";
import { RunDeletion } from "vramscope/parts/run_deletion.js";
import { drawAge, endBanner, headline } from "vramscope/parts/run_head.js";
import { store } from "vramscope/store.js";

const REFRESH_DELAY_MS = 150;
/** Scrolls the tabs of a narrow screen to the open one. */
export function scrollToOpenTab(head) {
  const tabs = head.querySelector(".tabs");
  const tab = tabs?.querySelector("[aria-current]");
  if (tab) tabs.scrollLeft = tab.offsetLeft - (tabs.clientWidth - tab.offsetWidth) / 2;
}

/** Fields of a run that its head shows. */
const IN_THE_HEAD = [
  "name",
  "state",
  "steps",
  "baseline",
  "tags",
  "note",
  "framework",
  "ranks_reporting",
  "techniques",
  "leak_count",
  "profiles",
  "recordings",
  "oom_records",
  "out_of_memory_count",
];

/**
 * Full run, updated with its row of the list. The row has only counts of leaks and errors, and short names of
 * techniques, so those of the full run stay.
 */
export function withRow(run, { leaks, out_of_memory: errors, techniques, ...rest }) {
  return { ...run, ...rest, leak_count: leaks, out_of_memory_count: errors };
}

/** Values that the head shows. The head is drawn again when one of them changes. */
export const headOf = (run) => IN_THE_HEAD.map((name) => run[name]);

/** Makes the `open` of a page's module. start() runs after the constructor, when the fields of the subclass are set. */
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
  keys = new Map(); // part -> JSON of the values that it was last drawn from
  preloadsPlotly = true; // loads Plotly before the first answer
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

  leave() {
    return false;
  }

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
    if (this.leave()) return;
    this.id = this.run.run_id;
    this.deletion = new RunDeletion(this.id);
    this.build();
    this.stops.push(
      subscribe([this.id], (message) => this.onMessage(message)),
      store.watch((state) => this.drawConnection(state)),
      onAction("note", () => this.editNote()),
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

  /** Prefix of exported files. */
  get file() {
    return this.run.name.replace(/[^\w.-]+/g, "_");
  }

  /** Creates empty parts for put(). */
  divide(...names) {
    this.parts = Object.fromEntries(names.map((name) => [name, h("div")]));
    return this.parts;
  }

  /** Draws a part if its values changed, so that focus and selection stay. Returns whether it did. */
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

  /** Takes the run's row of the runs list. */
  takeRow(row) {
    const before = this.run;
    this.run = withRow(before, row);
    this.drawRun();
    if (this.refreshIfChanged.some((name) => this.run[name] !== before[name])) this.refresh();
  }

  /** Refetches after a delay, once for several calls. */
  refresh(wait = REFRESH_DELAY_MS) {
    if (this.waiting) return;
    this.waiting = setTimeout(async () => {
      this.waiting = null;
      try {
        await this.refetch();
      } catch {
        // the stale banner reports it
      }
    }, wait);
  }

  isStale({ live }) {
    return live.state === "stale" && this.run.state === "running";
  }

  /** Draws the stale banner. Refreshes when drawing resumes after a pause. */
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
        headline(run, {
          share: () => location.href,
          tab: this.tab,
          deletion: this.deletion,
          onNote: () => this.editNote(),
        }),
      )
    )
      scrollToOpenTab(this.parts.head);
    this.drawAge();
    this.drawEnd();
  }

  /** Opens the note. The page is drawn again from the live event of the change. */
  editNote() {
    editNote(this.run, async (note) => this.takeRow(await api.changeRun(this.id, { note })));
  }

  drawAge() {
    drawAge(this.parts.head, this.run);
  }

  drawEnd() {
    const { run } = this;
    this.put("ended", [run.state, run.error_type, run.error_line, run.events?.length], () => endBanner(run));
  }
}
