/** Mini-map of a run: its rows, its axis, and the effect of its brush on the view. */

import { api } from "vramscope/api.js";
import { count } from "vramscope/format.js";
import { MiniMap } from "vramscope/parts/mini_map.js";
import { placeInWords } from "vramscope/parts/view_bar.js";
import { clockTicks, stepTicks, timeTicks } from "vramscope/series.js";
import { setQuery } from "vramscope/store.js";

const POINTS = 300;
const GROWTH = 1.1; // a run that has grown by this factor is fetched again: in its first minute it soon outgrows the map

export class RunMap {
  length = Infinity; // of the axis when the rows were fetched

  /** `page` has `id`, `run`, `view`, `zero`, `newestTime`, `newestStep`, `zoom(range)`. */
  constructor(page) {
    this.page = page;
    this.map = new MiniMap({
      onWindow: (window) => (window ? page.zoom(window) : setQuery({ from: null, to: null, last: null })),
      words: (value) => placeInWords(page.view, page.zero, value),
      ticks: (from, to, most) => this.ticks(from, to, most),
    });
    this.element = this.map.element;
  }

  /** Fetches the whole run, thinned to the resolution of the mini-map. */
  async load() {
    const { id, view, zero } = this.page;
    const { x, rank, device } = view;
    this.length = Infinity; // no second request while this one is open
    try {
      const answer = await api.series(id, {
        stream: "samples",
        names: MiniMap.FIELDS.join(","),
        rank,
        device,
        x,
        points: POINTS,
      });
      const now = this.page.view;
      if (this.page.closed || x !== now.x || rank !== now.rank || device !== now.device) return;
      const { extent } = this;
      this.map.setRows(answer, x === "step" ? 0 : zero, extent);
      this.length = extent[1] - extent[0];
      this.draw();
    } catch {
      // the charts report the problem and can choose the window too
    }
  }

  /** Range of the axis. */
  get extent() {
    const { run, view, zero, newestStep, newestTime } = this.page;
    if (view.x === "step") return [run.window?.first_step ?? 0, Math.max(newestStep ?? 0, run.window?.last_step ?? 0)];
    return [0, Math.max(newestTime ?? 0, run.window?.last_seconds ?? 0) - zero];
  }

  /** Fetches the run again if it has outgrown the map. */
  grow() {
    const [first, end] = this.extent;
    if (end - first > GROWTH * this.length) this.load();
  }

  /** Moves the brush to the window of the view. */
  draw() {
    const { from, to, last } = this.page.view;
    const [first, end] = this.extent;
    this.map.show(
      from !== null ? { from, to: to ?? end } : last && last < end - first ? { from: end - last, to: end } : null,
    );
  }

  ticks(from, to, most) {
    if (this.page.view.clock) return clockTicks(from, to, this.page.zero, most);
    if (this.page.view.x === "time") return timeTicks(from, to, most);
    const values = stepTicks(from, to, most);
    return { values, texts: values.map((value) => count(value)) };
  }
}
