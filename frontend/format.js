/** Formats numbers for people. Pure functions. Null, undefined, NaN and infinity become "unknown", never 0. */

export const UNKNOWN = "unknown";
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

/** Rounds half up, as the server and the agent do (vramscope/protocol/number_format.py): toFixed alone would not. */
function fixed(value, decimals) {
  const scale = 10 ** decimals;
  const [whole, rest] = (Math.floor(value * scale + 0.5) / scale).toFixed(decimals).split(".");
  return whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",") + (rest ? `.${rest}` : "");
}

/** Three significant digits of a value that is not negative, and all before the point: 1.41, 61.8, 618, 1,010. */
const threeDigits = (value) => fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);

/** Size in bytes with three significant digits: 24.3 GiB, 4.05 GiB, 812 MiB. */
export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  let size = Math.abs(value);
  let unit = 0;
  // 1023.7 MiB would read "1,024 MiB"
  while (size >= 1023.5 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  const text = unit === 0 ? fixed(size, 0) : threeDigits(size);
  return `${value < 0 && text !== "0" ? "−" : ""}${text} ${UNITS[unit]}`;
}

/** Change of a size with its sign: +9.00 GiB, −1.50 MiB. */
export function signedBytes(change) {
  return isKnown(change) ? `${change < 0 ? "−" : "+"}${bytes(Math.abs(change))}` : UNKNOWN;
}

/** Size to the byte, for a tooltip: "4,348,654,387 bytes". */
export function exactBytes(value) {
  return isKnown(value) ? `${count(value)} ${Math.round(value) === 1 ? "byte" : "bytes"}` : UNKNOWN;
}

/** Growth per step: 2.41 MiB/step. */
export function perStep(value, per = "step") {
  return isKnown(value) ? `${bytes(value)}/${per}` : UNKNOWN;
}

/** Fraction as a percentage: 0.0123 -> "1.2 %". */
export function percent(fraction, digits = 1) {
  if (!isKnown(fraction)) return UNKNOWN;
  const text = fixed(Math.abs(fraction) * 100, digits);
  return `${fraction < 0 && Number(text) !== 0 ? "−" : ""}${text} %`;
}

/** Percentage with its sign: −12.4 %, +3.0 %, 0.0 %. */
export function signedPercent(fraction, digits = 1) {
  const text = percent(fraction, digits);
  return isKnown(fraction) && fraction > 0 && Number.parseFloat(text) !== 0 ? `+${text}` : text;
}

/** Change in words: −0.451 -> "45.1 % smaller", 0.03 -> "3.0 % larger", nothing -> "equal". */
export function changeWords(change, [less, more] = ["smaller", "larger"], digits = 1) {
  if (!isKnown(change)) return UNKNOWN;
  const text = percent(Math.abs(change), digits);
  return Number.parseFloat(text) === 0 ? "equal" : `${text} ${change < 0 ? less : more}`;
}

/** Time with three significant digits: 31.0 µs, 412 ms, 1.23 s; from 100 s on as `duration`. */
export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  const sign = value < 0 ? "−" : "";
  if (size * 1e6 < 0.005) return sign ? "> −0.01 µs" : "< 0.01 µs";
  if (size * 1e6 < 999.5) return `${sign}${threeDigits(size * 1e6)} µs`;
  if (size * 1e3 < 999.5) return `${sign}${threeDigits(size * 1e3)} ms`;
  return sign + (size < 99.95 ? `${threeDigits(size)} s` : duration(size));
}

/** Long time: 12 s, 3 min 20 s, 2 h 05 min, 3 d 4 h. */
export function duration(value) {
  if (!isKnown(value)) return UNKNOWN;
  const total = Math.max(0, Math.round(value));
  if (total < 60) return `${total} s`;
  const minutes = Math.floor(total / 60);
  if (minutes < 60) return `${minutes} min ${String(total % 60).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Time on an axis: 0:07, 1:23:45. With decimals for spans below a minute: 12.4 s. */
export function axisTime(value, step = 1) {
  const sign = value < 0 ? "−" : "";
  const size = Math.abs(value);
  const decimals = step >= 1 ? 0 : Math.min(6, Math.ceil(-Math.log10(step) - 1e-9));
  const rounded = Number(size.toFixed(decimals));
  if (decimals > 0 && rounded < 60) return `${sign}${rounded.toFixed(decimals)} s`;
  const total = Math.floor(rounded);
  const rest = decimals > 0 ? (rounded - total).toFixed(decimals).slice(1) : "";
  const two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(total / 3600);
  const minutes = Math.floor((total % 3600) / 60);
  const text = hours > 0 ? `${hours}:${two(minutes)}:${two(total % 60)}` : `${minutes}:${two(total % 60)}`;
  return `${sign}${text}${rest}`;
}

/** Age: "now", "3 min ago", "2 d ago". */
export function ago(timeSeconds, nowSeconds) {
  if (!isKnown(timeSeconds)) return UNKNOWN;
  const age = nowSeconds - timeSeconds;
  if (age < 5) return "now";
  if (age < 60) return `${Math.floor(age)} s ago`;
  if (age < 3600) return `${Math.floor(age / 60)} min ago`;
  if (age < 2 * 86400) return `${Math.floor(age / 3600)} h ago`;
  return `${Math.floor(age / 86400)} d ago`;
}

/** Local time of day: 14:03:59. */
export function clock(timeSeconds) {
  if (!isKnown(timeSeconds)) return UNKNOWN;
  const date = new Date(timeSeconds * 1000);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** Local seconds (as if UTC) on an axis of times of day: 14:05, 14:05:30, 14:05:30.2. With the day: Aug 3 14:05. */
export function localClock(localSeconds, step, withDay = false) {
  const decimals = step >= 1 ? 0 : Math.min(3, Math.ceil(-Math.log10(step) - 1e-9));
  const date = new Date((Math.round(localSeconds * 10 ** decimals) / 10 ** decimals) * 1000);
  const iso = date.toISOString();
  const text = iso.slice(11, decimals ? 20 + decimals : step % 60 === 0 ? 16 : 19);
  if (!withDay) return text;
  return `${MONTHS[date.getUTCMonth()]} ${date.getUTCDate()} ${text}`;
}

/** Local date and time: 2026-08-03 14:03:59. */
export function dateTime(timeSeconds) {
  if (!isKnown(timeSeconds)) return UNKNOWN;
  const date = new Date(timeSeconds * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(timeSeconds)}`;
}

/** Integer with commas between thousands, as in the sentences of the server: 12,345. */
export function count(value) {
  return isKnown(value) ? String(Math.round(value)).replace(/\B(?=(\d{3})+(?!\d))/g, ",") : UNKNOWN;
}

/** Number of things: "1 segment", "1,200 segments". */
export const countOf = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

/** Name of a category of memory, as in the glossary. */
export const categoryName = (category) => (category === "optimizer" ? "optimizer state" : (category ?? "unknown"));

const PHASE_PLACES = {
  other: "outside of all phases",
  data: "before the forward pass",
  forward: "in the forward pass",
  backward: "in the backward pass",
  optimizer: "in the optimizer update",
  eval: "in the evaluation",
};

/** A phase in a sentence, as in those of the server (series.phase_place): "in the backward pass". */
export const phasePlace = (phase) => PHASE_PLACES[phase] ?? `in ${phase}`;

/** Number of steps: "1 step", "1,200 steps". */
export const stepCount = (value) => countOf(value, "step");

/** Number of live graphs. The agent counts up to 10,000 (wire.MOST_GRAPHS). */
export function graphs(value) {
  return value >= 10_000 ? `${count(10_000)} or more` : count(value);
}

/** Ratio of times: ×1.23. */
export function ratio(value) {
  return isKnown(value) ? `×${value.toFixed(2)}` : UNKNOWN;
}

/** Plain number with its significant digits. With a power of ten from 1e12 on, and below 0.0001. */
export function number(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (Math.abs(value) >= 1e12) return value.toExponential(2).replace("e+", "e");
  if (value !== 0 && Math.abs(value) < 1e-4) return Number(value.toPrecision(3)).toExponential();
  return Math.abs(value) >= 100 || Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(3)));
}

/** Quantity with its unit (the `meta.unit` of a trace). */
export function quantity(value, unit) {
  if (!isKnown(value)) return UNKNOWN;
  switch (unit) {
    case "bytes":
      return bytes(value);
    case "percent":
      return `${value.toFixed(0)} %`;
    case "watts":
      return `${value.toFixed(0)} W`;
    case "celsius":
      return `${value.toFixed(0)} °C`;
    case "seconds":
      return seconds(value);
    default:
      return number(value);
  }
}

const WIDEST_BOUND = 0.25; // larger upper bounds say nothing about the cost: the run was too short or too uneven

/** Agent overhead in words: measured, or below the resolution. */
export function overhead(cost) {
  if (!cost) return "not measured yet";
  if (cost.resolvable && isKnown(cost.fraction))
    return `${percent(Math.max(0, cost.fraction))} (measured)`;
  if (isKnown(cost.noise_fraction) && cost.noise_fraction < WIDEST_BOUND)
    return `below ${percent(Math.max(0.005, cost.noise_fraction))}`;
  return "not measured yet";
}

/** Part of a total: "7 of 8". */
export function partOf(part, total) {
  if (!isKnown(total)) return UNKNOWN;
  return part === total ? String(total) : `${isKnown(part) ? part : "?"} of ${total}`;
}

/** Name of a Python function: "train()". Names such as <module> stay as they are. */
export const called = (name) => (name.endsWith(">") ? name : `${name}()`);
