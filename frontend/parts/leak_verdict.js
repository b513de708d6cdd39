/** Verdict on a run's leaks, and its key figures. */

import { h } from "vramscope/dom.js";
import { ago, bytes, count, duration, graphs, isKnown, perStep, stepCount, UNKNOWN } from "vramscope/format.js";
import { isNote } from "vramscope/parts/leaks_table.js";

/** Forecasts beyond this many steps are not given as a number. */
const FAR_STEPS = 1_000_000;
const BANNERS = { leak: "bad", held: "warn", host: "quiet", growth: "warn", none: "good", unknown: "quiet" };
const HEADS = {
  leak: "Leaking.",
  held: "Retained too long.",
  host: "Retained on the host.",
  growth: "Growing.",
  none: "No leak found.",
};

/** Headline where a leak is neither found nor excluded: what is missing, and whether memory rises. */
function openHead({ scans, floor }) {
  const scanned = scansThatRan(scans).length > 0;
  if (floor.growing || risesUnevenly(floor)) return scanned ? "Memory rises; no leak confirmed." : "Memory rises; not scanned for leaks.";
  if (scanned) return isKnown(floor.slope_bytes_per_step) ? "No leak confirmed." : "No leak found; growth is not known.";
  if (floor.growing === false) return "No growth; not scanned for leaks.";
  return scans.length > 0 ? "Too few steps to detect growth." : "Not scanned for leaks.";
}

/** Banner of the verdict. Takes the answer of `/leaks`. Screen readers announce its changes. */
export function verdictBanner(report) {
  const { level, sentence } = report.verdict;
  return h(
    "div",
    { class: `banner verdict ${BANNERS[level]}`, "data-level": level },
    h("strong", {}, HEADS[level] ?? openHead(report)),
    h("span", {}, sentence),
  );
}

/** Values that the banner is drawn from. It is drawn again, and announced, when one of them changes. */
export const headKey = (report) => [report.verdict, !HEADS[report.verdict.level] && openHead(report)];

/** Banner for memory that the scans could not search. */
export function omissions(scans) {
  const left = scans.filter((scan) => scan.not_scanned);
  if (left.length === 0) return null;
  const of = (scan) => (scans.length > 1 ? `rank ${scan.rank}: ` : "");
  return h(
    "div",
    { class: "banner warn", "data-omissions": true },
    h("strong", {}, "Not scanned:"),
    h(
      "span",
      {},
      left.map((scan, i) => [i > 0 && "; ", of(scan), scan.not_scanned]),
      ". There may be more leaks.",
    ),
  );
}

/** Scans without the reports that none was needed: those have no tensors. */
export const scansThatRan = (scans) => scans.filter((scan) => scan.tensors !== 0);

/** Key figures, beside the verdict's: the effect of the worst leak's fix is in its sentence. Takes the answer of `/leaks`. */
export function figures({ leaks: listed, scans, leaked_bytes: retained, graphs_alive: alive, floor, state }) {
  const ran = scansThatRan(scans);
  const scanned = ran.length > 0;
  const leaks = listed.filter((leak) => !leak.on_host && !isNote(leak));
  const rises = Boolean(floor?.growing);
  const none = scanned && !rises ? "nothing" : UNKNOWN;
  return h(
    "section",
    { class: "card kpis", "aria-label": "Key figures of the leaks" },
    cell(
      "held",
      "Retained",
      leaks.length ? bytes(retained) : none,
      leaks.length
        ? holdersNote(leaks)
        : !scanned
          ? "no scan"
          : rises
            ? "memory rises"
            : listed.length
              ? "on the device"
              : "from earlier steps",
    ),
    cell(
      "graphs",
      "Graphs alive",
      graphs(alive),
      isKnown(alive) ? "from earlier steps, at the newest step" : "not reported",
    ),
    cell(
      "slope",
      "Growth per step",
      growthPerStep(floor),
      slopeNote(floor),
    ),
    cell(
      "end",
      isKnown(floor.ran_out_step) ? "Out of memory" : "Time to OOM",
      oomForecast(floor),
      oomForecastNote(floor, state, leaks),
    ),
    cell("scan", "Last scan", scanned ? lastScan(ran) : "none", scans.length ? scanNote(scanned ? ran : scans) : ""),
  );
}

function cell(key, label, value, note, title = null) {
  const unknown = value === UNKNOWN || value === "none";
  return h(
    "div",
    { class: "kpi", "data-kpi": key, title: title || null },
    h("div", { class: "label" }, label),
    h("div", { class: `value${unknown ? " unknown" : ""}` }, value),
    h("div", { class: "note", title: note }, note),
  );
}

/** Number of holders, and the host memory of autograd nodes if it exceeds the tensors. */
function holdersNote(leaks) {
  const nodes = leaks.reduce((sum, leak) => sum + leak.node_bytes, 0);
  const tensors = leaks.reduce((sum, leak) => sum + leak.held_bytes, 0);
  const who = `by ${leaks.length === 1 ? "1 holder" : `${leaks.length} holders`}`;
  return nodes > tensors ? `${who}, and about ${bytes(nodes)} of autograd nodes` : who;
}

/** A rise in a few jumps, or one that slows down, has a slope, but is no growth of each step: the API then leaves `growing` open. */
const risesUnevenly = (floor) => isKnown(floor.slope_bytes_per_step) && floor.growing === null;

function growthPerStep(floor) {
  if (risesUnevenly(floor)) return "not steady";
  if (floor.growing === false) return "none found"; // the slope of the noise, of any sign, says nothing
  return isKnown(floor.slope_bytes_per_step) ? perStep(floor.slope_bytes_per_step) : UNKNOWN;
}

function slopeNote(floor) {
  if (!isKnown(floor.slope_bytes_per_step)) return "too few steps";
  if (risesUnevenly(floor)) return "in jumps, or more and more slowly";
  if (floor.growing === false) return `over ${stepCount(floor.steps)}`;
  return `± ${bytes(floor.smallest_detectable_bytes_per_step)} over ${count(floor.steps)} steps`;
}

function oomForecast(floor) {
  if (isKnown(floor.ran_out_step)) return `in step ${count(floor.ran_out_step)}`;
  if (floor.steps_to_out_of_memory > FAR_STEPS) return `over ${count(FAR_STEPS)} steps`;
  if (isKnown(floor.steps_to_out_of_memory)) return `${count(floor.steps_to_out_of_memory)} steps`;
  return floor.growing === false ? "never at this rate" : UNKNOWN;
}

function oomForecastNote(floor, state, leaks) {
  if (isKnown(floor.ran_out_step)) return "the run ran out of memory";
  if (isKnown(floor.steps_to_out_of_memory)) {
    const time =
      isKnown(floor.seconds_to_out_of_memory) && floor.steps_to_out_of_memory <= FAR_STEPS
        ? `${duration(floor.seconds_to_out_of_memory)}, `
        : "";
    const emptied = leaks.some((leak) => leak.emptied_at) ? ", unless it is emptied first" : "";
    return `${time}${bytes(floor.room_bytes)} free${emptied}`;
  }
  if (floor.growing === false) return "memory after each step does not grow";
  if (floor.growing === true) return state === "running" ? "no forecast: see the sentence above" : "the run has ended";
  return isKnown(floor.capacity_bytes) ? "" : "capacity unknown";
}

function lastScan(scans) {
  const step = Math.max(...scans.map((scan) => scan.step));
  return step > 0 ? `step ${count(step)}` : "before step 1";
}

function scanNote(scans) {
  const newest = scans.reduce((a, b) => (b.time_seconds > a.time_seconds ? b : a));
  return `${ago(newest.time_seconds, Date.now() / 1000)}: ${newest.reason}`;
}
