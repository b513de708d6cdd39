/** What changed before a run failed or was lost: its last finished step against those before, and the host's last sample. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown, number, seconds, signedPercent, stepCount } from "vramscope/format.js";

const STEPS = 100; // compared with
const LEAST = 5; // steps before: fewer have no range that says anything
const SAMPLES_SECONDS = 60;
const POINTS = 600;
const APART = 0.05; // a value beyond the range by less than this share of it stands out in no way

/** Losses that JSON has as text. */
const NOT_FINITE = { nan: "NaN", inf: "infinite", "-inf": "infinite" };

/** Columns of a step: name, field, and how a value is written. */
const OF_STEPS = [
  ["peak allocated", "peak_allocated_bytes", bytes],
  ["peak reserved", "peak_reserved_bytes", bytes],
  ["allocated after the step", "end_allocated_bytes", bytes],
  ["step time", "seconds", seconds],
];
const OF_HOST = [
  ["memory of the process (RSS)", "process_rss_bytes", bytes],
  ["host memory in use", "host_used_bytes", bytes],
];

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/**
 * A row from values in order. Null without a last value, or with too few before it. `text(value)` writes one. `falls`: it is meant
 * to fall, so that only a rise stands out.
 */
export function compared(name, values, text, falls = false) {
  const last = values.at(-1);
  const before = values.slice(0, -1).filter((value) => typeof value === "number");
  if ((typeof last !== "string" && !isKnown(last)) || before.length < LEAST) return null;
  const [low, high] = [Math.min(...before), Math.max(...before)];
  const odd = typeof last === "string"; // a loss: "nan" or "inf"
  const beyond = (bound) => Math.abs(last - bound) / Math.abs(bound || 1);
  const apart = odd ? 1 : last > high ? beyond(high) : last < low && !falls ? beyond(low) : 0;
  return { name, last, low, high, middle: median(before), text, standsOut: apart > APART, isHigher: odd || last > high };
}

/** Number of steps of a row, which may be a group of several. */
const stepsOf = ({ step, first_step: first }) => (isKnown(first) ? step - first + 1 : 1);

const stepWords = ({ step, first_step: first }) =>
  isKnown(first) && first < step ? `steps ${count(first)} to ${count(step)}` : `step ${count(step)}`;

/** What stands out, in words: "step time was higher than before: 1.90 s instead of 340 ms to 360 ms". "" if nothing. */
const oddities = (rows) =>
  rows
    .filter(({ standsOut }) => standsOut)
    .map(({ name, last, low, high, isHigher, text }) =>
      typeof last === "string"
        ? `${name} was ${NOT_FINITE[last] ?? last}`
        : `${name} was ${isHigher ? "higher" : "lower"} than before: ${text(last)} instead of ${text(low)} to ${text(high)}`,
    )
    .join("; ");

/** Sentences on the last step and the last sample of the host. */
function summary(rows, hosts, last) {
  const [ofStep, ofHost] = [oddities(rows), oddities(hosts)];
  if (!ofStep && !ofHost) return `No value was more than ${APART * 100} % beyond its range before.`;
  return [ofStep && `In ${stepWords(last)}, ${ofStep}.`, ofHost && `At the end, ${ofHost}.`].filter(Boolean).join(" ");
}

const titleOf = ({ state }) =>
  state === "failed" ? "What changed before it failed" : "What changed before the signal was lost";

/** Card for a run that failed or was lost. Hidden for others, and for those with too few steps. */
export class BeforeFailure {
  element = h("section", { class: "card before-failure", hidden: true });
  key = null;

  show(run, place) {
    const key = JSON.stringify([run.state, run.steps, place]);
    if (key === this.key) return;
    this.key = key;
    const isShown = (run.state === "failed" || run.state === "lost") && run.steps > LEAST;
    this.element.hidden = !isShown;
    if (!isShown) return;
    if (!this.element.childNodes.length) {
      fill(this.element, h("header", {}, h("h2", {}, titleOf(run))));
      this.element.setAttribute("aria-busy", "true"); // keeps the space of the tables
    }
    this.fetch(run, place, key);
  }

  async fetch(run, place, key) {
    const where = { rank: place.rank, device: place.device };
    const of = { ...where, points: POINTS };
    const ofSteps = OF_STEPS.filter(([, field]) => field !== "seconds" || !place.emulated);
    const hasLoss = run.loss && !place.emulated; // an emulated GPU computes nothing
    const first = Math.max(1, run.steps - STEPS);
    const end = run.window?.last_seconds;
    const ask = [
      api.steps(run.run_id, { ...where, from: first }),
      hasLoss && api.series(run.run_id, { ...of, stream: "scalars", names: run.loss.name, x: "step", from: first }),
      isKnown(end) &&
        api.series(run.run_id, { ...of, names: OF_HOST.map(([, field]) => field).join(), from: end - SAMPLES_SECONDS }),
    ];
    const [steps, loss, host] = (await Promise.allSettled(ask)).map(({ value }) => value || null);
    if (key !== this.key) return;
    this.element.removeAttribute("aria-busy");
    this.element.hidden = !steps?.length;
    if (!steps?.length) return;
    const valuesOf = (answer, field) => answer?.series[field]?.value ?? answer?.series[field]?.mean ?? [];
    const rows = [
      ...ofSteps.map(([name, field, text]) => compared(name, steps.map((step) => step[field]), text)),
      loss && compared(lossName(loss, steps.at(-1)), valuesOf(loss, run.loss.name), number, true),
    ].filter(Boolean);
    const hosts = OF_HOST.map(([name, field, text]) => compared(name, valuesOf(host, field), text)).filter(Boolean);
    const before = steps.slice(0, -1).reduce((sum, step) => sum + stepsOf(step), 0);
    this.element.hidden = !rows.length;
    if (rows.length) this.draw(run, { rows, hosts, last: steps.at(-1), before });
  }

  draw(run, { rows, hosts, last, before }) {
    const failed = run.state === "failed";
    // Only the end of all ranks is known, and of a lost run only when its data arrived, by another clock.
    const after = failed && isKnown(run.ended_seconds) ? run.ended_seconds - last.time_seconds : -1;
    const ended = `step ${count(last.step)} ended ${seconds(after)} before the end of the run`;
    fill(
      this.element,
      h("header", {}, h("h2", {}, titleOf(run)), isKnown(last.time_seconds) && after >= 0 && h("span", { class: "muted" }, ended)),
      h("p", { class: "pad" }, summary(rows, hosts, last)),
      h(
        "div",
        { class: "before-tables" },
        table(rows, `${stepCount(before)} before`, stepWords(last)),
        hosts.length > 0 && table(hosts, `up to ${SAMPLES_SECONDS} s before`, "last sample"),
      ),
    );
  }
}

/** A loss may be reported in some steps only. */
const lossName = ({ x_values: at }, { step }) => (at.at(-1) === step ? "loss" : `loss of step ${count(at.at(-1))}`);

function table(rows, before, last) {
  const range = ({ low, high, text }) =>
    text(low) !== text(high) && h("span", { class: "below" }, `${text(low)} to ${text(high)}`);
  const change = ({ last: value, middle }) => typeof value === "number" && middle !== 0 && signedPercent(value / middle - 1);
  const heads = [before, last, "change"].map((label) => h("th", { class: "number", scope: "col" }, label));
  return h(
    "div",
    { class: "scroll", tabindex: "0" },
    h(
      "table",
      { class: "plain oom-list" },
      h("thead", {}, h("tr", {}, h("td", {}), heads)),
      h(
        "tbody",
        {},
        rows.map((row) =>
          h(
            "tr",
            { "data-changed": row.name, class: row.standsOut ? "stands-out" : null },
            h("th", { scope: "row" }, row.name),
            h("td", { class: "number" }, row.text(row.middle), range(row)),
            h("td", { class: "number" }, typeof row.last === "string" ? (NOT_FINITE[row.last] ?? row.last) : row.text(row.last)),
            h("td", { class: "number" }, change(row)),
          ),
        ),
      ),
    ),
  );
}
