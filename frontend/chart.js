/**
 * One chart: a figure that Python built, extended with live rows. Only this file and charts/ use Plotly.
 *
 * Data and layout come from the server. This file only replaces arrays, sets colours by role and chooses ranges.
 * charts/schedule.js decides when a chart is drawn.
 */

import { themedLayout, themedTraces } from "vramscope/charts/theming.js";
import { drawLegend } from "vramscope/charts/legend.js";
import { chartHead } from "vramscope/charts/head.js";
import { drawTable, exportChart } from "vramscope/charts/numbers.js";
import { loadPlotly } from "vramscope/charts/plotly.js";
import { drawPolygons, isPolygons, placePolygons } from "vramscope/charts/polygons.js";
import { drawScale } from "vramscope/charts/scale.js";
import { cancelDraw, isWaiting, requestDraw } from "vramscope/charts/schedule.js";
import { Tail } from "vramscope/charts/tail.js";
import { h, setText } from "vramscope/dom.js";
import { dateTime } from "vramscope/format.js";
import { appendRows, decode } from "vramscope/series.js";
import { themeColors } from "vramscope/theme.js";

export { loadPlotly } from "vramscope/charts/plotly.js";

const TAIL_ROWS = 240; // live rows appended to a window before it is fetched again
const MOST_PENDING = 600; // live messages kept while a window is being fetched; enough for minutes
const CONFIG = {
  displayModeBar: false,
  displaylogo: false,
  showTips: false,
  doubleClick: false,
  responsive: false,
  scrollZoom: false,
};

const onScreen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) target.setVisible(isIntersecting);
  },
  { rootMargin: "160px" },
);

/**
 * Options of `configure`:
 * title      Heading.
 * load       async (signal) => {figure, window}
 * live       null, or (message) => x values of a `rows` message. Null if the message does not feed this chart.
 * tail       async (from, signal) => {figure}: rows behind the last finished step, which replace those that the chart has.
 *            With it, live messages are only a sign that there is something to fetch.
 * legend     (chart, colors) => void: draws the legend instead of charts/legend.js
 * isFolded   (trace) => whether a trace is not drawn because its level is folded
 * onZoom     ({from, to} | null) => void. Null: show all again. Without it, the chart does not zoom.
 * view       () => {from, to, last, clock, smooth}. `from` and `to`: numbers, or null for all data. `last`: width of the
 *            newest part to show. `clock`: show times of day. `smooth`: draw lines, except peaks, with their means.
 * scale      {chosen: () => "log", "linear" or null, choose: (name or null) => void}: for charts whose y axis may be
 *            logarithmic. Null: as the figure says.
 * describe   (traces) => sentence for screen readers
 * onPlace    ({x, y} | null, "move" | "click") => void: position of the pointer in axis units. Null when it leaves.
 * onDrawn    () => void: called after each drawing
 * numbers    False: the chart has no table and no CSV.
 * download   Table of the server that the export menu offers: `table`, `query()` and `what`.
 * peers      () => charts that share the x axis and the cursor
 * file       Name of exported files.
 */
export class ChartElement extends HTMLElement {
  drawnAt = -Infinity;
  visible = false;
  stale = false; // to be fetched again when it becomes visible
  hasWrongSize = false; // drawn at another size than its element has: redrawn even when invisible, or it would overflow
  figure = null;
  traces = [];
  pending = [];
  added = 0;
  revision = 0;
  request = null;
  zoomGuard = false;
  dragging = false;

  configure(options) {
    this.options = options;
    this.plot = h("div", { class: "plot" });
    this.cursor = h("div", { class: "cursor", hidden: true });
    this.message = h("p", { class: "chart-message" }, "loading…");
    this.notes = h("p", { class: "chart-notes", hidden: true });
    this.legend = h("div", { class: "legend" });
    this.table = h("div", { class: "chart-table", hidden: true });
    Object.assign(this, chartHead(this));
    this.append(
      this.head,
      this.notes,
      h(
        "div",
        { class: "chart-body" },
        h("div", { class: "plot-frame" }, this.plot, this.cursor, this.message),
        this.legend,
      ),
      this.table,
    );
    this.classList.add("card", "chart");
    this.plot.addEventListener("pointerdown", () => (this.dragging = true));
    if (options.onPlace) {
      this.plot.addEventListener("pointermove", (event) => options.onPlace(this.placeOf(event), "move"));
      this.plot.addEventListener("pointerleave", () => options.onPlace(null, "move"));
      this.plot.addEventListener("click", (event) => {
        const place = this.placeOf(event);
        if (place) options.onPlace(place, "click");
      });
    }
    this.tail = options.tail && new Tail(this);
    this.pointerUp = () => (this.dragging = false);
    addEventListener("pointerup", this.pointerUp);
    this.resize = new ResizeObserver(() => {
      const { width, height } = this.drawn ? this.plot.layout : {};
      this.hasWrongSize =
        Boolean(width) &&
        this.plot.clientWidth > 0 &&
        (width !== this.plot.clientWidth || height !== this.plot.clientHeight);
      if (this.hasWrongSize) requestDraw(this);
    });
    this.resize.observe(this.plot);
    onScreen.observe(this);
    return this;
  }

  disconnectedCallback() {
    this.request?.abort();
    this.tail?.close();
    onScreen.unobserve(this);
    this.resize?.disconnect();
    removeEventListener("pointerup", this.pointerUp);
    cancelDraw(this);
    if (this.drawn && window.Plotly) window.Plotly.purge(this.plot);
    this.drawn = false;
    this.gone = true;
  }

  setVisible(isVisible) {
    this.visible = isVisible;
    if (!isVisible) return;
    if ((!this.figure || this.stale) && !this.request) this.reload();
    else if (isWaiting(this)) requestDraw(this);
  }

  mayDraw() {
    return (
      (this.visible || this.hasWrongSize) && !document.hidden && !this.dragging && !this.gone && this.figure !== null
    );
  }

  /** Fetches the window again. The old picture stays until the new one arrives. Invisible charts fetch later. */
  async reload() {
    if (!this.visible) {
      this.request?.abort();
      this.request = null;
      this.stale = true;
      return;
    }
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.pending = [];
    try {
      const [answer] = await Promise.all([this.options.load(request.signal), loadPlotly()]);
      if (this.request !== request || this.gone) return;
      this.request = null;
      this.setFigure(answer.figure);
    } catch (error) {
      if (error.name === "AbortError" || this.request !== request) return;
      this.request = null;
      if (!this.figure) this.showMessage(error.message);
    }
  }

  showMessage(text) {
    setText(this.message, text);
    this.message.hidden = !text;
    this.plot.classList.toggle("blank", Boolean(text));
  }

  setFigure(figure) {
    const layout = figure.layout;
    const statements = (layout.annotations ?? [])
      .filter((annotation) => annotation.name === "statement")
      .map((annotation) => unescaped(annotation.text));
    layout.annotations = (layout.annotations ?? []).filter((annotation) => annotation.name !== "statement");
    this.figure = figure;
    this.stale = false;
    this.traces = figure.data.map((trace) => ({ ...trace, x: decode(trace.x), y: decode(trace.y) }));
    this.fetched = this.traces.map((trace) => trace.x.length);
    this.stream = layout.meta?.stream ?? [];
    this.feeds = new Set(this.stream.map((entry) => entry.stream));
    if (layout.meta?.awaits) this.feeds.add(layout.meta.awaits); // a stream that had no rows yet
    this.added = 0;
    this.tail?.reset();
    const empty = this.traces.length === 0;
    this.showMessage(empty ? statements.join("; ") || "nothing recorded yet" : "");
    this.toggleAttribute("data-empty", empty);
    setText(this.notes, empty ? "" : statements.join(" · "));
    this.notes.hidden = empty || statements.length === 0;
    this.legend.hidden = empty || this.traces.every((trace) => trace.meta?.legend === false);
    for (const rows of this.pending) this.appendMessage(rows);
    this.pending = [];
    this.builtLegend = null;
    this.drawnAt = -Infinity;
    requestDraw(this);
  }

  /** Draws the present data again. */
  redraw() {
    this.drawnAt = -Infinity;
    if (this.figure) requestDraw(this);
  }

  /** Appends a live message. Rows that arrive during a request are kept until it ends. */
  feed(message) {
    if (!this.options.live) return;
    if (this.tail) {
      if (this.options.live(message)) this.tail.want();
      return;
    }
    if (this.request) {
      // rows that the new window already contains are dropped then: they are not later than its last row
      if (this.pending.length < MOST_PENDING) this.pending.push(message);
      return;
    }
    if (!this.figure || this.stale || !this.feeds.has(message.stream)) return;
    if (this.appendMessage(message)) {
      if (this.added > TAIL_ROWS || this.traces.length === 0) this.reload();
      else requestDraw(this);
    }
  }

  appendMessage(message) {
    const x = this.options.live(message);
    if (!x) return 0;
    if (this.traces.length === 0) return 1;
    let most = 0;
    for (const entry of this.stream) {
      if (entry.stream !== message.stream) continue;
      most = Math.max(most, appendRows(this.traces[entry.trace], entry, message.columns, x));
    }
    this.added += most;
    return most;
  }

  /** Number of buckets to request: three for four pixels look like one per pixel and draw a quarter faster. */
  get points() {
    return Math.round(Math.min(800, Math.max(240, (this.plot.clientWidth || 600) * 0.75)));
  }

  /** Width of the plot in pixels. */
  get wide() {
    return Math.max(100, this.plot.clientWidth || 1200);
  }

  /** Range of the x axis: the requested window, or all data. */
  xRange() {
    const view = this.options.view?.() ?? {};
    let first = Infinity;
    let last = -Infinity;
    for (const trace of this.traces) {
      if (trace.x.length === 0) continue;
      first = Math.min(first, trace.x[0]);
      last = Math.max(last, trace.x[trace.x.length - 1]);
    }
    if (!(last >= first)) [first, last] = [0, 1];
    if (view.from !== null && view.from !== undefined) return [view.from, view.to ?? last];
    if (view.last) return [Math.max(first, last - view.last), last];
    return last > first ? [first, last] : [first - 0.5, last + 0.5];
  }

  draw() {
    const Plotly = window.Plotly;
    if (!Plotly || this.traces.length === 0 || this.gone) return;
    const started = performance.now();
    const colors = themeColors();
    const layout = themedLayout(this, colors);
    const data = themedTraces(this, colors);
    this.drawn = true;
    this.hasWrongSize = false;
    this.zoomGuard = true;
    const drawing = Plotly.react(
      this.plot,
      data.filter((trace) => !isPolygons(trace)),
      layout,
      CONFIG,
    );
    drawPolygons(this, data.filter(isPolygons));
    if (!this.wired) this.wire();
    drawing.then(() => {
      this.zoomGuard = false;
    });
    this.drawnAt = performance.now();
    this.drawMs = this.drawnAt - started;
    this.dataset.drawMs = this.drawMs.toFixed(1);
    this.dataset.draws = Number(this.dataset.draws ?? 0) + 1;
    const newest = this.traces.reduce((last, trace) => Math.max(last, trace.x.at(-1) ?? -Infinity), -Infinity);
    this.dataset.newest = newest;
    (this.options.legend ?? drawLegend)(this, colors);
    if (this.scaleButton) drawScale(this);
    if (!this.table.hidden) drawTable(this);
    this.options.onDrawn?.();
  }

  /** Position of the pointer in axis units. Null outside the axes. */
  placeOf(event) {
    const { xaxis, yaxis, _size: size } = this.plot._fullLayout ?? {};
    if (!this.drawn || !size) return null;
    const frame = this.plot.getBoundingClientRect();
    const [left, top] = [event.clientX - frame.left - size.l, event.clientY - frame.top - size.t];
    if (left < 0 || left > size.w || top < 0 || top > size.h) return null;
    return { x: xaxis.p2d(left), y: yaxis.p2d(top + size.t - yaxis._offset) }; // the axis may start below the top of the plot
  }

  wire() {
    this.wired = true;
    this.plot.on("plotly_relayout", (change) => {
      placePolygons(this);
      if (this.zoomGuard || !this.options.onZoom) return;
      const key = Object.keys(change).find((name) => /^xaxis\d*\.range\[0\]$/.test(name));
      if (key) this.options.onZoom({ from: change[key], to: change[key.replace("[0]", "[1]")] });
    });
    this.plot.on("plotly_doubleclick", () => {
      this.options.onZoom?.(null);
      return false;
    });
    this.plot.on("plotly_hover", (event) => {
      this.setHoverTitle(event.xvals?.[0]);
      for (const peer of this.options.peers?.() ?? []) if (peer !== this) peer.showCursor(event.xvals?.[0]);
    });
    this.plot.on("plotly_unhover", () => {
      for (const peer of this.options.peers?.() ?? []) peer.showCursor(null);
    });
    if (this.options.onPick) this.plot.on("plotly_click", (event) => this.options.onPick(event.points[0]));
  }

  /** Writes the time of day into the hover box: Plotly formats an axis of seconds as numbers only. */
  setHoverTitle(x) {
    const { x: axis, x0_seconds: zero } = this.figure.layout.meta ?? {};
    const title =
      this.options.view?.().clock && axis === "time" ? this.plot.querySelector(".hoverlayer .legendtitletext") : null;
    if (title && typeof x === "number") title.textContent = dateTime(zero + x);
  }

  /**
   * Shows the common cursor. It is an element of ours, because hovering all charts in Plotly would cost a frame each.
   */
  showCursor(x) {
    this.mark(this.cursor, x);
  }

  /** Moves a line element to a position on the x axis. Hides it if the position is out of view. */
  mark(line, x) {
    const axis = this.drawn ? this.plot._fullLayout?.xaxis : null;
    const size = this.plot._fullLayout?._size;
    if (x === null || x === undefined || !axis || !size || axis.type !== "linear") {
      line.hidden = true;
      return;
    }
    const left = axis.d2p(x);
    line.hidden = !(left >= 0 && left <= size.w);
    line.style.left = `${size.l + left}px`;
    line.style.top = `${size.t}px`;
    line.style.height = `${size.h}px`;
  }

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-pressed", String(!this.table.hidden));
    if (!this.table.hidden) drawTable(this);
  }

  export(kind, event) {
    return exportChart(this, kind, event);
  }
}

customElements.define("vs-chart", ChartElement);

/** Creates a chart element. */
export function chart(options) {
  return document.createElement("vs-chart").configure(options);
}

/** Reverses the escaping of figures/drawing.py. */
function unescaped(text) {
  return text.replaceAll("%\u200b{", "%{").replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}
