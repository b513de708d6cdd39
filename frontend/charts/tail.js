/**
 * Newest part of a live chart whose rows are computed by the server. It asks for the rows behind the last finished step
 * and replaces those that the chart has: the samples of an unfinished step give way to the step.
 */

import { requestDraw } from "vramscope/charts/schedule.js";
import { decode } from "vramscope/series.js";

const EVERY_MS = 1_000;
const MOST_ROWS = 240; // rows appended before the whole window is fetched again

export class Tail {
  constructor(chart) {
    this.chart = chart;
  }

  close() {
    clearTimeout(this.waiting);
    this.request?.abort();
  }

  /** Called with each new window. */
  reset() {
    this.request?.abort();
    this.request = null;
    this.appended = 0;
  }

  /** Requests the newest rows, at most once a second. */
  want() {
    this.waiting ??= setTimeout(() => {
      this.waiting = null;
      this.fetch();
    }, EVERY_MS);
  }

  async fetch() {
    const { chart } = this;
    if (chart.gone || chart.request || !chart.visible || document.hidden) return;
    if (this.request) {
      this.want(); // one at a time: of two, reset() would end only the newer
      return;
    }
    const meta = chart.figure?.layout.meta;
    if (!meta || meta.covered === null || meta.covered === undefined || this.appended > MOST_ROWS) {
      chart.reload();
      return;
    }
    const request = (this.request = new AbortController());
    try {
      const { figure } = await chart.options.tail(meta.covered, request.signal);
      if (!request.signal.aborted && !chart.gone) this.append(figure);
    } catch (error) {
      if (error.name !== "AbortError") this.want(); // the stale banner reports it
    } finally {
      if (this.request === request) this.request = null;
    }
  }

  append(figure) {
    const { chart } = this;
    const { meta } = chart.figure.layout;
    const fresh = figure.layout.meta;
    if (!fresh.levels) return;
    const news = new Map(figure.data.map((trace) => [keyOf(trace), rowsBehind(trace, meta.covered)]));
    const drawn = new Set(chart.traces.map(keyOf));
    if ([...news].some(([key, { y }]) => !drawn.has(key) && y.some(Number.isFinite))) {
      chart.reload(); // a part that the chart did not have yet
      return;
    }
    let added = 0;
    for (const trace of chart.traces) {
      const keep = trace.x.findLastIndex((x) => x <= meta.covered) + 1;
      trace.x.length = trace.y.length = keep;
      const newer = news.get(keyOf(trace));
      if (!newer) continue;
      trace.x.push(...newer.x);
      trace.y.push(...newer.y);
      added = Math.max(added, newer.x.length);
      const { numbers } = newer.meta;
      if (numbers) trace.meta = { ...trace.meta, numbers: merged(trace.meta.numbers, numbers, meta, fresh) };
    }
    const levels = Object.fromEntries(
      Object.entries(fresh.levels).map(([level, numbers]) => [level, merged(meta.levels[level], numbers, meta, fresh)]),
    );
    const peak = fresh.peak.bytes > meta.peak.bytes ? fresh.peak : meta.peak;
    Object.assign(meta, { levels, peak, covered: fresh.covered ?? meta.covered });
    this.appended += added;
    requestDraw(chart);
  }
}

const keyOf = (trace) => `${trace.meta.role} ${trace.meta.kind}`;

/** Rows of a trace behind a place on the x axis. */
function rowsBehind({ x, y, meta }, place) {
  const [along, values] = [decode(x), decode(y)];
  const from = along.findIndex((value) => value > place);
  return { meta, x: from < 0 ? [] : along.slice(from), y: from < 0 ? [] : values.slice(from) };
}

/** Numbers of the legend, after rows were appended. */
function merged(before, newer, meta, fresh) {
  const known = [before?.highest, newer.highest].filter((value) => value !== null && value !== undefined);
  return {
    // without a new step the answer repeats the last one, whose samples lie before its window
    last: fresh.covered > meta.covered ? newer.last : (before?.last ?? null),
    peak: fresh.peak.bytes > meta.peak.bytes ? newer.peak : (before?.peak ?? null),
    highest: known.length ? Math.max(...known) : null,
  };
}
