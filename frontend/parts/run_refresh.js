/** Fetches the full run of a live page again: at most every two seconds, and for several changes once. */

import { api } from "vramscope/api.js";

const EVERY_MS = 2_000;
const SOON_MS = 300;
const WITHOUT_CHANGE_MS = 15_000;

export class RunRefresh {
  /** `onRun(run, withCharts)` gets the answer; `withCharts`: the windows of the charts have changed too. */
  constructor(onRun) {
    this.onRun = onRun;
    this.fetchedAt = -Infinity;
  }

  /** True if the run was not fetched for a while. */
  get isDue() {
    return Date.now() - this.fetchedAt > WITHOUT_CHANGE_MS;
  }

  want(run, { charts = true } = {}) {
    this.withCharts ||= charts;
    if (this.timer) return;
    const wait = Math.max(0, EVERY_MS - (Date.now() - this.fetchedAt));
    this.timer = setTimeout(() => this.fetch(run), charts ? Math.min(wait, SOON_MS) : wait);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
  }

  async fetch(run) {
    this.timer = null;
    this.fetchedAt = Date.now();
    const { withCharts } = this;
    this.withCharts = false;
    try {
      const full = await api.run(run);
      if (!this.closed) this.onRun(full, withCharts);
    } catch {
      // the stale banner reports it; the next event retries
    }
  }
}
