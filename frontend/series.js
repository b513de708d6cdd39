/** Pure functions on series: decoding, appending, statistics, paths, axis ticks. No DOM, no network. */

import { axisTime, localClock } from "vramscope/format.js";

const READERS = {
  f8: Float64Array,
  f4: Float32Array,
  i1: Int8Array,
  u1: Uint8Array,
  i2: Int16Array,
  u2: Uint16Array,
  i4: Int32Array,
  u4: Uint32Array,
};

/**
 * Converts an array of Plotly's JSON to a plain array: a list, or `{dtype, bdata}` with base64 inside.
 * Done before drawing, because appending to an encoded array throws, and `Array.from` of one is silently empty.
 */
export function decode(values) {
  if (values === null || values === undefined) return [];
  if (Array.isArray(values)) return values;
  if (ArrayBuffer.isView(values)) return Array.from(values);
  const Reader = READERS[values.dtype];
  if (!Reader) throw new Error(`unknown dtype ${values.dtype} in a figure`);
  const raw = atob(values.bdata);
  const buffer = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) buffer[i] = raw.charCodeAt(i);
  return Array.from(new Reader(buffer.buffer));
}

const known = (value) => typeof value === "number" && Number.isFinite(value);

/**
 * Value of a live row for one trace: the field minus other fields, times a scale. Undefined if the row does not belong
 * to the trace. Null if the value is unknown.
 */
export function liveValue(columns, entry, i) {
  if (entry.needs && !known(columns[entry.needs]?.[i])) return undefined;
  const value = columns[entry.field]?.[i];
  if (!known(value) || (value < 0 && !entry.signed)) return null;
  if (entry.minus) {
    const less = [entry.minus].flat().map((name) => columns[name]?.[i]);
    if (!less.every((other) => known(other) && other >= 0)) return null;
    return Math.max(0, value - less.reduce((sum, one) => sum + one, 0)) * (entry.scale ?? 1);
  }
  return value * (entry.scale ?? 1);
}

/** Resolution of seconds since 1970 in a double is 0.25 µs: rows closer than this are the same row. */
const SAME = 2e-6;

/**
 * Appends the rows of a live `rows` event that are later than the last one, in place. Returns the number of appended
 * rows.
 */
export function appendRows(trace, entry, columns, x) {
  let added = 0;
  const last = trace.x.length ? trace.x[trace.x.length - 1] : -Infinity;
  for (let i = 0; i < x.length; i += 1) {
    if (!(x[i] > last + SAME)) continue;
    const value = liveValue(columns, entry, i);
    if (value === undefined) continue;
    trace.x.push(x[i]);
    trace.y.push(value);
    added += 1;
  }
  return added;
}

/** Last, lowest, mean and highest of the known values. Null if there is none. */
export function stats(values) {
  let last = null;
  let min = Infinity;
  let max = -Infinity;
  let sum = 0;
  let n = 0;
  for (const value of values) {
    if (!known(value)) continue;
    last = value;
    if (value < min) min = value;
    if (value > max) max = value;
    sum += value;
    n += 1;
  }
  return n ? { last, min, max, mean: sum / n } : { last: null, min: null, max: null, mean: null };
}

/**
 * Statistics over all rows of a thinned window. `fetched`: statistics of the fetched rows. `live`: values of later
 * rows.
 */
export function windowStats(fetched, live) {
  const since = stats(live);
  if (since.last === null) return fetched;
  const rows = live.filter(known).length;
  return {
    last: since.last,
    min: Math.min(fetched.min, since.min),
    max: Math.max(fetched.max, since.max),
    mean: (fetched.mean * fetched.rows + since.mean * rows) / (fetched.rows + rows),
  };
}

/** Highest known value, or null. */
export function highest(values) {
  let best = null;
  for (const value of values) if (known(value) && (best === null || value > best)) best = value;
  return best;
}

/**
 * Axis range close around the values, where an axis from zero would hide small changes. At least a tenth of the highest
 * value, so that noise does not look large. Below zero only if values are.
 */
export function closeRange(low, high) {
  const span = Math.max(high - low, Math.max(Math.abs(low), Math.abs(high)) * 0.1) || 1;
  const middle = (low + high) / 2;
  const bottom = middle - span * 0.57;
  return [low < 0 ? bottom : Math.max(0, bottom), middle + span * 0.57];
}

/** Range of a logarithmic axis around values above zero, as powers of ten. */
export function logRange(low, high) {
  const [bottom, top] = [Math.log10(low > 0 ? low : high), Math.log10(high)];
  const room = Math.max(0.05, (top - bottom) * 0.06);
  return [bottom - room, top + room];
}

/** Ticks of a logarithmic axis between two powers of ten: 1, 2, 5, or decades, or some decades. */
export function logTicks(from, to, most = 7) {
  const decades = to - from;
  const factors = decades * 3 <= most ? [1, 2, 5] : decades * 2 <= most ? [1, 3] : [1];
  const every = Math.max(1, Math.ceil(decades / most));
  const values = [];
  for (let power = Math.floor(from); power <= Math.ceil(to); power += 1) {
    if (power % every) continue;
    for (const factor of factors) {
      const at = power + Math.log10(factor);
      if (at >= from && at <= to) values.push(factor * 10 ** power);
    }
  }
  return {
    values,
    texts: values.map((value) =>
      value >= 1e-4 && value < 1e5 ? String(Number(value.toPrecision(2))) : value.toExponential(0).replace("e+", "e"),
    ),
  };
}

/** `d` attributes of a sparkline in a box of width x height: line, and area below it. Unknown values are gaps. */
export function sparklinePaths(values, width, height, ceiling = null) {
  const top = Math.max(ceiling ?? 0, highest(values) ?? 0) || 1;
  const stepX = values.length > 1 ? width / (values.length - 1) : 0;
  let line = "";
  let area = "";
  let open = null;
  const round = (value) => Math.round(value * 10) / 10;
  values.forEach((value, i) => {
    if (!known(value)) {
      if (open !== null) area += `L${round((i - 1) * stepX)},${height}Z`;
      open = null;
      return;
    }
    const x = round(i * stepX);
    const y = round(height - 1 - (value / top) * (height - 2));
    if (open === null) {
      line += `M${x},${y}`;
      area += `M${x},${height}L${x},${y}`;
      open = i;
    } else {
      line += `L${x},${y}`;
      area += `L${x},${y}`;
    }
  });
  if (open !== null) area += `L${round((values.length - 1) * stepX)},${height}Z`;
  if (values.length === 1 && line) line += `h${width}`;
  return { line, area };
}

/**
 * `d` attribute of the area between two series along x, in a box of width x height that spans `extent` and 0 to `top`.
 * `low` null: down to zero. Unknown values are gaps.
 */
export function envelopePath(x, low, high, [first, last], top, width, height) {
  const round = (value) => Math.round(value * 10) / 10;
  const across = (value) => round((Math.min(1, Math.max(0, (value - first) / (last - first))) || 0) * width);
  const up = (value) => round(height - (Math.max(0, value) / (top || 1)) * (height - 1));
  let path = "";
  let points = [];
  const close = () => {
    const there = points.map((i) => `${across(x[i])},${up(high[i])}`);
    // the lower edge is one pixel lower: an area of height 0 stays visible as a line
    const back = points
      .toReversed()
      .map((i) => `${across(x[i])},${low && known(low[i]) ? Math.min(height, up(low[i]) + 1) : height}`);
    if (points.length === 1) there.push(`${round(across(x[points[0]]) + 1)},${up(high[points[0]])}`);
    if (points.length) path += `M${[...there, ...back].join("L")}Z`;
    points = [];
  };
  x.forEach((_, i) => (known(high[i]) ? points.push(i) : close()));
  close();
  return path;
}

/** Outlines of a band, one for each part in which both edges are known, separated by gaps. */
export function bandOutlines(x, low, high) {
  const out = { x: [], y: [] };
  const close = (begin, end) => {
    if (end <= begin) return;
    const there = x.slice(begin, end);
    out.x.push(...there, ...there.toReversed(), null);
    out.y.push(...high.slice(begin, end), ...low.slice(begin, end).reverse(), null);
  };
  let begin = 0;
  for (let i = 0; i <= x.length; i += 1) {
    if (i < x.length && known(low[i]) && known(high[i])) continue;
    close(begin, i);
    begin = i + 1;
  }
  return out;
}

/**
 * Window moved by `by` within `extent`. `part`: "window", or the "start" or "end" only. Never narrower than `least`.
 */
export function shiftedWindow({ from, to }, part, by, [first, last], least) {
  if (part === "window") {
    const moved = Math.min(Math.max(by, first - from), last - to);
    return { from: from + moved, to: to + moved };
  }
  if (part === "start") return { from: Math.max(first, Math.min(from + by, to - least)), to };
  const end = Math.min(last, Math.max(to + by, from + least));
  return { from: Math.max(first, Math.min(from, end - least)), to: end };
}

/**
 * Moving mean over `width` around each x (ascending). Unknown values stay unknown and count in no mean. Linear time.
 */
export function smoothed(x, y, width) {
  const out = new Array(y.length);
  let [begin, end, sum, n] = [0, 0, 0, 0];
  for (let i = 0; i < y.length; i += 1) {
    for (; end < y.length && x[end] <= x[i] + width / 2; end += 1) if (known(y[end])) [sum, n] = [sum + y[end], n + 1];
    for (; x[begin] < x[i] - width / 2; begin += 1) if (known(y[begin])) [sum, n] = [sum - y[begin], n - 1];
    out[i] = known(y[i]) ? sum / n : null;
  }
  return out;
}

const TIME_STEPS = [
  1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
  15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
];

/** Ticks of a time axis between two times (seconds): round steps and their labels. */
export function timeTicks(from, to, most = 8) {
  const span = to - from;
  if (!(span > 0) || !Number.isFinite(span)) return { values: [from], texts: [axisTime(from)] };
  const step = TIME_STEPS.find((candidate) => span / candidate <= most) ?? Math.ceil(span / most / 604800) * 604800;
  const values = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k += 1) values.push(k * step);
  return { values, texts: values.map((value) => axisTime(value, step)) };
}

/** Ticks of a step axis: round numbers between two steps. */
export function stepTicks(from, to, most = 8) {
  const least = Math.max(1, (to - from) / most);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= least);
  const values = [];
  for (let value = Math.ceil(from / step) * step; value <= to; value += step) values.push(value);
  return values;
}

/**
 * Ticks of an axis of local times of day. `from` and `to`: seconds after `zero`, which is in seconds since 1970. The
 * first tick of a day shows the date.
 */
export function clockTicks(from, to, zero, most = 8) {
  // seconds that read as local time in UTC; a change of daylight saving time within the window is ignored
  const local = zero + from - new Date((zero + from) * 1000).getTimezoneOffset() * 60 - from;
  const span = to - from;
  if (!(span > 0) || !Number.isFinite(span)) return { values: [from], texts: [localClock(local + from, 1)] };
  const step = TIME_STEPS.find((candidate) => span / candidate <= most) ?? Math.ceil(span / most / 604800) * 604800;
  const values = [];
  for (let k = Math.ceil((local + from) / step - 1e-9); k * step <= local + to + step * 1e-9; k += 1)
    values.push(k * step - local);
  const day = (value) => Math.floor((local + value) / 86400 + 1e-9);
  return {
    values,
    texts: values.map((value, i) =>
      localClock(
        local + value,
        step,
        i === 0 ? day(value) !== day(from) || span > 86400 : day(value) !== day(values[i - 1]),
      ),
    ),
  };
}

/**
 * Rows as CSV (RFC 4180). A leading = + - @ in a text is escaped, so that a spreadsheet does not run it as a formula.
 */
export function toCsv(rows) {
  const cell = (value) => {
    if (value === null || value === undefined || (typeof value === "number" && !Number.isFinite(value))) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** Rows as a Markdown table. The first row is the head. */
export function toMarkdown(rows) {
  const cell = (value) =>
    String(value ?? "")
      .replaceAll("\\", "\\\\")
      .replaceAll("|", "\\|")
      .replaceAll("<", "&lt;")
      .replace(/\s+/g, " ");
  const [head, ...body] = rows;
  const line = (row) => `| ${row.map(cell).join(" | ")} |`;
  return (
    [line(head), `|${head.map((_, i) => (i ? " ---: |" : " --- |")).join("")}`, ...body.map(line)].join("\n") + "\n"
  );
}

/** Joins traces on x for a table: `{head: [...], rows: [[x, y, ...]]}`. */
export function joined(xName, traces) {
  const byX = new Map();
  traces.forEach((trace, column) => {
    trace.x.forEach((x, i) => {
      let row = byX.get(x);
      if (!row) byX.set(x, (row = new Array(traces.length).fill(null)));
      row[column] = trace.y[i] ?? null;
    });
  });
  const numeric = [...byX.keys()].every((x) => typeof x === "number");
  const keys = numeric ? [...byX.keys()].sort((a, b) => a - b) : [...byX.keys()];
  return { head: [xName, ...traces.map((trace) => trace.name)], rows: keys.map((x) => [x, ...byX.get(x)]) };
}

/** Share of a value of its ceiling, clipped to 0..1. Null if unknown. */
export function shareOf(value, ceiling) {
  if (!known(value) || !known(ceiling) || ceiling <= 0) return null;
  return Math.min(1, Math.max(0, value / ceiling));
}

/** True if two sets are equal. */
export function sameSet(a, b) {
  return a.size === b.size && [...a].every((item) => b.has(item));
}
