/**
 * One chart: a figure that Python built, fed with live rows. The only file that talks to Plotly.
 *
 * The figure's data and layout come from the server. Here its arrays are replaced, its colours set by role, its ranges
 * chosen; nothing else. All charts of a page share one scheduler: at most one chart is drawn a frame, each at most twice
 * a second, none while the page is hidden or the chart is off the screen.
 */

import { h, fill, setText, download } from "vramscope/dom.js";
import { quantity } from "vramscope/format.js";
import { appendRows, decode, highest, joined, stats, timeTicks, toCsv } from "vramscope/series.js";
import { onThemeChange, rgba, themeColors } from "vramscope/theme.js";

const DRAW_EVERY_MS = 500;
const TAIL_ROWS = 240; // live rows drawn beyond a window before it is fetched again, thinned like the rest
const TABLE_ROWS = 200;
const MOST_PENDING = 600; // live messages kept while a window is on its way: minutes

let plotlyLoading = null;

/** Plotly.js, loaded once and only where a chart is wanted. */
export function loadPlotly() {
  plotlyLoading ??= new Promise((resolve, reject) => {
    if (window.Plotly) return resolve(window.Plotly);
    const source = document.querySelector('meta[name="plotly-src"]')?.content;
    const asked = document.getElementById("plotly"); // app.js asks for it early where the first page has charts
    const script = asked ?? h("script", { id: "plotly", src: source, async: true });
    script.addEventListener("load", () => resolve(window.Plotly));
    script.addEventListener("error", () => {
      plotlyLoading = null;
      script.remove();
      reject(new Error("Plotly.js could not be loaded from this server."));
    });
    if (!asked) document.head.append(script);
  });
  return plotlyLoading;
}

/* The scheduler. */
const dirty = new Set();
let timer = null;

function wantDraw(chart) {
  dirty.add(chart);
  if (timer === null) timer = setTimeout(nextFrame, 0);
}

function nextFrame() {
  timer = null;
  requestAnimationFrame(() => {
    const now = performance.now();
    let soonest = Infinity;
    let due = null;
    for (const chart of dirty) {
      if (!chart.mayDraw()) continue;
      const wait = chart.drawnAt + DRAW_EVERY_MS - now;
      if (wait <= 0 && (!due || chart.drawnAt < due.drawnAt)) due = chart;
      soonest = Math.min(soonest, Math.max(0, wait));
    }
    if (due) {
      dirty.delete(due);
      due.draw();
    }
    if (dirty.size && timer === null && soonest < Infinity) timer = setTimeout(nextFrame, due ? 0 : soonest);
  });
}

const onScreen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) target.seen(isIntersecting);
  },
  { rootMargin: "160px" },
);

document.addEventListener("visibilitychange", () => !document.hidden && [...dirty].forEach(wantDraw));

/** Roles that the reader switched off in a legend: in all charts at once. */
export const hiddenRoles = new Set();

/**
 * Options of `configure`:
 * title      heading
 * load       async (signal) => {figure, window}
 * live       null or (message) => x values of a rows message that feeds this chart, or null if it is not for it
 * onZoom     ({from, to} | null) => void; null: see all again. Left out: the chart does not zoom
 * view       () => {from, to} to show, numbers or null for "as far as the data goes"; `last`: only the last so many
 * describe   (traces) => sentence for screen readers
 * peers      () => charts that share the x axis, for the common cursor
 * file       name of exported files
 */
export class ChartElement extends HTMLElement {
  drawnAt = -Infinity;
  visible = false;
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
    this.tableButton = h("button", { class: "button quiet small", type: "button", "aria-pressed": "false", title: "view as table", onclick: () => this.toggleTable() }, "Table");
    const item = (label, kind) => h("button", { type: "button", class: "menu-item", onclick: (event) => this.export(kind, event) }, label);
    this.append(
      h("header", { class: "chart-head" },
        h("h3", {}, options.title),
        h("span", { class: "chart-tools" },
          this.tableButton,
          h("details", { class: "menu" }, h("summary", { class: "button quiet small", title: "export" }, "Export"),
            h("div", { class: "menu-list" }, item("PNG picture", "png"), item("SVG picture", "svg"), item("CSV numbers", "csv"))))),
      this.notes,
      h("div", { class: "chart-body" }, h("div", { class: "plot-frame" }, this.plot, this.cursor, this.message), this.legend),
      this.table,
    );
    this.classList.add("card", "chart");
    this.plot.addEventListener("pointerdown", () => (this.dragging = true));
    this.pointerUp = () => (this.dragging = false);
    addEventListener("pointerup", this.pointerUp);
    this.resize = new ResizeObserver(() => {
      const { width, height } = this.drawn ? this.plot.layout : {};
      if (width && (width !== this.plot.clientWidth || height !== this.plot.clientHeight)) wantDraw(this);
    });
    this.resize.observe(this.plot);
    onScreen.observe(this);
    return this;
  }

  disconnectedCallback() {
    this.request?.abort();
    onScreen.unobserve(this);
    this.resize?.disconnect();
    removeEventListener("pointerup", this.pointerUp);
    dirty.delete(this);
    if (this.drawn && window.Plotly) window.Plotly.purge(this.plot);
    this.drawn = false;
    this.gone = true;
  }

  seen(isVisible) {
    this.visible = isVisible;
    if (!isVisible) return;
    if (!this.figure && !this.request) this.reload();
    else if (dirty.has(this)) wantDraw(this);
  }

  mayDraw() {
    return this.visible && !document.hidden && !this.dragging && !this.gone && this.figure !== null;
  }

  /** Fetch the window again; the old picture stays until the new one is here. Off the screen: later. */
  async reload() {
    if (!this.visible) {
      this.request?.abort();
      this.request = null;
      this.figure = null;
      return;
    }
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.pending = [];
    try {
      const [answer] = await Promise.all([this.options.load(request.signal), loadPlotly()]);
      if (this.request !== request || this.gone) return;
      this.request = null;
      this.take(answer.figure);
    } catch (error) {
      if (error.name === "AbortError" || this.request !== request) return;
      this.request = null;
      if (!this.figure) this.say(error.message);
    }
  }

  say(text) {
    setText(this.message, text);
    this.message.hidden = !text;
    this.plot.classList.toggle("blank", Boolean(text));
  }

  take(figure) {
    const layout = figure.layout;
    const statements = (layout.annotations ?? []).filter((annotation) => annotation.name === "statement").map((annotation) => annotation.text);
    layout.annotations = (layout.annotations ?? []).filter((annotation) => annotation.name !== "statement");
    this.figure = figure;
    this.traces = figure.data.map((trace) => ({ ...trace, x: decode(trace.x), y: decode(trace.y) }));
    this.stream = layout.meta?.stream ?? [];
    this.feeds = new Set(this.stream.map((entry) => entry.stream));
    this.added = 0;
    const empty = this.traces.length === 0;
    this.say(empty ? statements.join("; ") || "nothing recorded yet" : "");
    this.toggleAttribute("data-empty", empty);
    setText(this.notes, empty ? "" : statements.join(" · "));
    this.notes.hidden = empty || statements.length === 0;
    this.legend.hidden = empty || this.traces.every((trace) => trace.meta?.legend === false);
    for (const rows of this.pending) this.append_(rows);
    this.pending = [];
    this.builtLegend = null;
    this.drawnAt = -Infinity;
    wantDraw(this);
  }

  /** A live message. Rows that arrive while a window is on its way wait for it. */
  feed(message) {
    if (!this.options.live) return;
    if (this.request) {
      // rows that are no longer needed when the window is here are left out then: they are not later than its last
      if (this.pending.length < MOST_PENDING) this.pending.push(message);
      return;
    }
    if (!this.figure || !this.feeds.has(message.stream)) return;
    if (this.append_(message)) {
      if (this.added > TAIL_ROWS || this.traces.length === 0) this.reload();
      else wantDraw(this);
    }
  }

  append_(message) {
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

  /** Buckets worth asking for: the envelope of three in four pixels looks like that of all, and draws a quarter faster. */
  get points() {
    return Math.round(Math.min(800, Math.max(240, (this.plot.clientWidth || 600) * 0.75)));
  }

  /** What the x axis shows: the asked window, or as far as the data goes. */
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
    const layout = this.themedLayout(colors);
    const data = this.traces.map((trace) => themedTrace(trace, colors));
    this.drawn = true;
    this.zoomGuard = true;
    const drawing = Plotly.react(this.plot, data, layout, CONFIG);
    if (!this.wired) this.wire();
    drawing.then(() => {
      this.zoomGuard = false;
    });
    this.drawnAt = performance.now();
    this.dataset.drawMs = (this.drawnAt - started).toFixed(1);
    this.dataset.draws = Number(this.dataset.draws ?? 0) + 1;
    const newest = this.traces.reduce((last, trace) => Math.max(last, trace.x.at(-1) ?? -Infinity), -Infinity);
    this.dataset.newest = newest;
    this.drawLegend(colors);
    if (!this.table.hidden) this.drawTable();
  }

  themedLayout(colors) {
    const source = this.figure.layout;
    const layout = { ...source, template: "none" };
    layout.font = { ...(source.font ?? {}), family: colors.font, size: 12, color: colors.muted };
    layout.paper_bgcolor = "rgba(0,0,0,0)";
    layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.hoverlabel = { bgcolor: colors.surface, bordercolor: colors.line, font: { family: colors.font, size: 12, color: colors.text } };
    layout.width = this.plot.clientWidth || undefined;
    layout.height = this.plot.clientHeight || undefined;
    layout.datarevision = this.revision += 1;
    layout.uirevision = "kept";
    layout.dragmode = this.options.onZoom && !COARSE.matches ? "zoom" : false;
    const kind = source.meta?.kind ?? "series";
    const [from, to] = kind === "series" ? this.xRange() : [0, 1];
    for (const key of Object.keys(source)) {
      if (/^[xy]axis\d*$/.test(key)) layout[key] = this.themedAxis(key, source[key], kind, from, to, colors);
    }
    layout.shapes = (source.shapes ?? []).map((shape) => ({
      ...shape,
      line: { ...(shape.line ?? {}), color: colors.role(shape.name ?? "capacity") },
      label: shape.label && { ...shape.label, font: { ...(shape.label.font ?? {}), color: colors.muted } },
    }));
    layout.annotations = (source.annotations ?? []).map((note) => ({ ...note, font: { ...(note.font ?? {}), color: colors.muted } }));
    return layout;
  }

  themedAxis(key, source, kind, from, to, colors) {
    const axis = { ...source, gridcolor: colors.grid, linecolor: colors.line, zerolinecolor: colors.line, tickcolor: colors.line };
    axis.tickfont = { ...(source.tickfont ?? {}), color: colors.muted };
    if (kind !== "series") return axis;
    if (key.startsWith("x")) {
      Object.assign(axis, { spikecolor: colors.muted, spikethickness: 1, spikedash: "dash", spikemode: "across" });
      axis.range = [from, to];
      axis.autorange = false;
      if (this.figure.layout.meta?.x === "time") {
        const ticks = timeTicks(from, to, Math.max(2, Math.floor((this.plot.clientWidth || 600) / 90)));
        Object.assign(axis, { tickmode: "array", tickvals: ticks.values, ticktext: ticks.texts });
        axis.title = { ...source.title, text: "time since start" };
      }
      return axis;
    }
    axis.fixedrange = true;
    if (source.autorange === false && source.range) return axis;
    const top = this.highestOn(key.replace("axis", ""), from, to);
    const capacity = key === "yaxis" ? this.figure.layout.meta?.capacity : null;
    let ceiling = (top || 1) * 1.07;
    // The capacity belongs in the picture once half of it is in use; before, it would press the data to the floor.
    if (capacity && top > capacity * 0.5) ceiling = Math.max(ceiling, capacity * 1.12);
    axis.range = [0, ceiling];
    axis.autorange = false;
    return axis;
  }

  highestOn(axis, from, to) {
    let top = 0;
    const stacks = new Map();
    for (const trace of this.traces) {
      if ((trace.yaxis ?? "y") !== axis || this.isHidden(trace)) continue;
      const { x, y } = trace;
      if (trace.stackgroup || (trace.type === "bar" && this.figure.layout.barmode === "stack")) {
        x.forEach((at, i) => {
          if (at >= from && at <= to && y[i] > 0) stacks.set(at, (stacks.get(at) ?? 0) + y[i]);
        });
      } else {
        for (let i = 0; i < x.length; i += 1) if (x[i] >= from && x[i] <= to && y[i] > top) top = y[i];
      }
    }
    for (const sum of stacks.values()) if (sum > top) top = sum;
    return top;
  }

  isHidden(trace) {
    return hiddenRoles.has(trace.meta?.role);
  }

  wire() {
    this.wired = true;
    this.plot.on("plotly_relayout", (change) => {
      if (this.zoomGuard || !this.options.onZoom) return;
      const key = Object.keys(change).find((name) => /^xaxis\d*\.range\[0\]$/.test(name));
      if (key) this.options.onZoom({ from: change[key], to: change[key.replace("[0]", "[1]")] });
    });
    this.plot.on("plotly_doubleclick", () => {
      this.options.onZoom?.(null);
      return false;
    });
    this.plot.on("plotly_hover", (event) => {
      for (const peer of this.options.peers?.() ?? []) if (peer !== this) peer.showCursor(event.xvals?.[0]);
    });
    this.plot.on("plotly_unhover", () => {
      for (const peer of this.options.peers?.() ?? []) peer.showCursor(null);
    });
    if (this.options.onPick) this.plot.on("plotly_click", (event) => this.options.onPick(event.points[0]));
  }

  /** The common cursor: our own line, because Plotly's hover on every chart at once would cost a frame each. */
  showCursor(x) {
    const axis = this.drawn ? this.plot._fullLayout?.xaxis : null;
    const size = this.plot._fullLayout?._size;
    if (x === null || x === undefined || !axis || !size || axis.type !== "linear") {
      this.cursor.hidden = true;
      return;
    }
    const left = axis.d2p(x);
    this.cursor.hidden = !(left >= 0 && left <= size.w);
    this.cursor.style.left = `${size.l + left}px`;
    this.cursor.style.top = `${size.t}px`;
    this.cursor.style.height = `${size.h}px`;
  }

  /** Legend rows: one a role, with the numbers of what is in view; a click switches the role off in all charts. */
  drawLegend(colors) {
    const [from, to] = this.xRange();
    const kind = this.figure.layout.meta?.kind ?? "series";
    const roles = new Map();
    for (const trace of this.traces) {
      const meta = trace.meta ?? {};
      if (meta.legend === false) continue;
      const group = roles.get(meta.role) ?? { meta, parts: {} };
      group.parts[meta.part ?? "value"] = trace;
      if (meta.part === "mean" || meta.part === "value" || meta.part === undefined) group.meta = meta;
      roles.set(meta.role, group);
    }
    const within = (trace) => (kind === "series" ? trace.y.filter((_, i) => trace.x[i] >= from && trace.x[i] <= to) : trace.y);
    const key = [...roles.keys()].join("|");
    if (this.builtLegend !== key) {
      this.builtLegend = key;
      this.legendRows = new Map();
      const numbers = kind === "series";
      this.legend.classList.toggle("plainly", !numbers);
      const body = h("tbody");
      for (const [role, { meta }] of roles) {
        const swatch = h("span", { class: `swatch ${meta.kind ?? "line"}` });
        const toggle = h("button", { class: "legend-toggle", type: "button", "aria-pressed": "true", title: meta.meaning ?? meta.label ?? null, onclick: () => toggleRole(role) }, swatch, h("span", { class: "legend-name" }, meta.label ?? role));
        const cells = numbers ? ["last", "min", "mean", "max"].map((name) => h("td", { class: `number ${name}` })) : [];
        body.append(h("tr", {}, h("th", { scope: "row" }, toggle), cells));
        this.legendRows.set(role, { swatch, toggle, cells });
      }
      fill(this.legend, h("table", {}, numbers && h("thead", {}, h("tr", {}, h("th", {}, h("span", { class: "offscreen" }, "series")), ["last", "min", "mean", "max"].map((name) => h("th", { class: `number ${name}`, scope: "col" }, name)))), body));
    }
    for (const [role, { meta, parts }] of roles) {
      const row = this.legendRows.get(role);
      const off = hiddenRoles.has(role);
      row.toggle.setAttribute("aria-pressed", String(!off));
      row.swatch.style.setProperty("--swatch", colors.role(meta.colour ?? role));
      if (row.cells.length === 0) continue;
      const main = stats(within(parts.mean ?? parts.value ?? Object.values(parts)[0]));
      const low = parts.min ? stats(within(parts.min)).min : main.min;
      const high = parts.max ? stats(within(parts.max)).max : main.max;
      const divisor = meta.divisor ?? 1;
      [main.last, low, main.mean, high].forEach((value, i) => {
        setText(row.cells[i], value === null ? "—" : quantity(value * divisor, meta.unit));
      });
    }
    const sentence = this.options.describe?.(this) ?? this.sentence(roles, within);
    if (this.getAttribute("aria-label") !== sentence) this.setAttribute("aria-label", sentence);
    this.setAttribute("role", "figure");
  }

  sentence(roles, within) {
    const parts = [];
    if (this.figure.layout.meta?.kind === "static") {
      for (const { meta, y, x } of this.traces) {
        y.forEach((value, i) => {
          if (meta.kind === "line" || typeof value !== "number" || !Number.isFinite(value)) return;
          const where = typeof x[i] === "string" && x[i] !== meta.label ? ` of ${x[i]}` : "";
          parts.push(`${meta.label}${where} ${quantity(value * (meta.divisor ?? 1), meta.unit)}`);
        });
      }
      return `${this.options.title}: ${parts.slice(0, 60).join(", ") || "nothing recorded yet"}.`;
    }
    for (const { meta, parts: traces } of roles.values()) {
      const top = highest(within(traces.max ?? traces.mean ?? traces.value ?? Object.values(traces)[0]));
      if (top !== null) parts.push(`${meta.label} up to ${quantity(top * (meta.divisor ?? 1), meta.unit)}`);
    }
    return `${this.options.title}: ${parts.join(", ") || "nothing recorded yet"}.`;
  }

  toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-pressed", String(!this.table.hidden));
    if (!this.table.hidden) this.drawTable();
  }

  tableContent() {
    const shown = this.traces.filter((trace) => trace.x.length);
    const x = this.figure?.layout.meta?.x;
    const label = (trace) => {
      const { label, part, axisUnit } = trace.meta ?? {};
      const name = `${label ?? trace.name}${part && part !== "value" ? ` (${part})` : ""}`;
      return axisUnit ? `${name}, ${axisUnit}` : name;
    };
    return joined(x === "time" ? "seconds since start" : x === "step" ? "step" : (x ?? "x"), shown.map((trace) => ({ ...trace, name: label(trace) })));
  }

  drawTable() {
    const { head, rows } = this.tableContent();
    const shown = rows.slice(-TABLE_ROWS);
    const text = (value) => (value === null ? "—" : typeof value === "number" ? String(Number(value.toPrecision(7))) : value);
    fill(
      this.table,
      rows.length > shown.length && h("p", { class: "muted" }, `The last ${TABLE_ROWS} of ${rows.length} rows; the CSV has all.`),
      h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, shown.map((row) => h("tr", {}, row.map((value) => h("td", { class: "number" }, text(value)))))))),
    );
  }

  async export(kind, event) {
    event.target.closest("details").open = false;
    const name = `${this.options.file ?? "vramscope"}.${kind}`;
    if (kind === "csv") {
      const { head, rows } = this.tableContent();
      download(name, toCsv([head, ...rows]), "text/csv");
      return;
    }
    if (!this.drawn) return;
    const colors = themeColors();
    const { data } = this.plot;
    const layout = { ...this.plot.layout, paper_bgcolor: colors.surface, title: { text: escapeText(this.options.title), font: { color: colors.text } }, margin: { ...this.plot.layout.margin, t: 48 }, showlegend: data.length < 20 };
    download(name, await window.Plotly.toImage({ data, layout }, { format: kind, width: 1200, height: 500, scale: kind === "png" ? 2 : 1 }));
  }
}

/** Plotly reads some HTML in texts; `<` in a name is a character. */
const escapeText = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");

const COARSE = matchMedia("(pointer: coarse)");
const CONFIG = { displayModeBar: false, displaylogo: false, showTips: false, doubleClick: false, responsive: false, scrollZoom: false };

function toggleRole(role) {
  if (hiddenRoles.has(role)) hiddenRoles.delete(role);
  else hiddenRoles.add(role);
  redrawAll();
}

/** After a change of theme or legend: every chart, as soon as it may. */
export function redrawAll() {
  for (const chart of document.querySelectorAll("vs-chart")) {
    chart.drawnAt = -Infinity;
    chart.builtLegend = null;
    if (chart.figure) wantDraw(chart);
  }
}

function themedTrace(trace, colors) {
  const { role, colour, kind } = trace.meta ?? {};
  const color = colors.role(colour ?? role);
  const themed = { ...trace, visible: !hiddenRoles.has(role), showlegend: kind !== "edge" && kind !== "band" };
  switch (kind) {
    case "edge":
      themed.line = { ...trace.line, width: 0, color: "rgba(0,0,0,0)" };
      break;
    case "band":
      themed.line = { ...trace.line, width: 0, color: "rgba(0,0,0,0)" };
      themed.fillcolor = rgba(color, 0.28);
      break;
    case "area":
      themed.line = { ...trace.line, width: 0.5, color };
      themed.fillcolor = rgba(color, 0.9);
      break;
    case "bar":
      themed.marker = { ...trace.marker, color, line: { width: 0 } };
      break;
    case "marker":
      themed.marker = { ...trace.marker, color, line: { width: 1, color: colors.surface } };
      if (trace.textfont !== undefined || trace.mode?.includes("text")) themed.textfont = { ...trace.textfont, color: colors.text };
      break;
    default:
      themed.line = { ...trace.line, color };
  }
  return themed;
}

onThemeChange(redrawAll);

customElements.define("vs-chart", ChartElement);

/** A chart, ready to be put on a page. */
export function chart(options) {
  return document.createElement("vs-chart").configure(options);
}
