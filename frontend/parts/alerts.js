/**
 * Alerts of a run, counted by the server's rules (Settings), each with a link to its details. Always possible: leaks,
 * out-of-memory errors, findings, and peaks that are lower bounds. If switched on: little headroom, and much reserved
 * memory that was never needed.
 */

import { h } from "vramscope/dom.js";
import { count, isKnown, percent, stepCount } from "vramscope/format.js";
import { headroomOf } from "vramscope/parts/run_verdict.js";

const many = (number, one, more) => `${count(number)} ${number === 1 ? one : more}`;

/** Default rules, where the server sends none. `words` name what a switched-off rule does not count. */
const ON = {
  leaks: { on: true, least_bytes: 0, words: "leaks" },
  out_of_memory: { on: true, words: "out-of-memory errors" },
  findings: { on: true, words: "pitfalls" },
  resets: { on: true, words: "resets" },
  headroom: { on: false },
  never_needed: { on: false },
};

const share = (fraction) => percent(fraction, Number.isInteger(Math.round(fraction * 1e6) / 1e4) ? 0 : 1);

/**
 * Returns `{alerts, unknown, off}`.
 * alerts    `{number, words, page}` (a page of this run) or `{number, words, part}` (a selector on its page)
 * unknown   names of alerts without data
 * off       names of alerts that the rules switch off
 * Resets count as one alert, and only if a peak is a lower bound: many scripts call PyTorch's function harmlessly.
 */
export function alertsOf(run) {
  const {
    leak_count: leaks,
    findings,
    foreign_reset_steps: resets,
    lower_bound_steps: bounds,
    fragmentation_fraction: never,
    capacity_bytes: capacity,
  } = run;
  const rules = { ...ON, ...run.alert_rules };
  const { headroom: exact, most } = headroomOf(run);
  const headroom = most ?? exact; // a bound can show that it is too small, and never that it is not
  const died = /OutOfMemoryError$/.test(run.error_type ?? "") ? 1 : 0; // its record may be missing
  const errors = Math.max(run.oom_records ?? 0, run.out_of_memory_count ?? 0, died);
  const isTight = isKnown(headroom) && headroom < capacity * rules.headroom.below_fraction;
  const alerts = [
    {
      rule: "leaks",
      number: run.leaked_bytes < rules.leaks.least_bytes ? 0 : (leaks ?? 0),
      words: many(leaks, "leak", "leaks"),
      page: "/leaks",
    },
    {
      rule: "out_of_memory",
      number: errors,
      words: many(errors, "out-of-memory error", "out-of-memory errors"),
      page: "/oom",
    },
    {
      rule: "findings",
      number: findings?.length ?? 0,
      words: many(findings?.length, "finding", "findings"),
      part: ".findings",
    },
    {
      rule: "resets",
      number: bounds > 0 ? 1 : 0,
      words: `counters reset in ${stepCount(bounds)}`,
      part: "vs-chart[data-figure=stack]",
    },
    {
      rule: "headroom",
      number: isTight ? 1 : 0,
      words: `headroom below ${share(rules.headroom.below_fraction)}`,
      part: "[data-kpi=headroom]",
    },
    {
      rule: "never_needed",
      number: never > rules.never_needed.above_fraction ? 1 : 0,
      words: `more than ${share(rules.never_needed.above_fraction)} of reserved never needed`,
      page: "/fragmentation",
    },
  ].filter(({ rule, number }) => rules[rule].on && number > 0);
  const unknown = [
    ["leaks", leaks === null, "leaks"],
    ["findings", findings === null, "pitfalls"],
    ["resets", run.ranks.some((rank) => rank.peak_allocated_bytes !== null) && resets === null, "resets"],
    ["headroom", !isTight && (isKnown(most) || !isKnown(exact)), "headroom"],
    ["never_needed", !isKnown(never), "never needed"],
  ].flatMap(([rule, is, words]) => (rules[rule].on && is ? [words] : []));
  const off = Object.keys(ON)
    .filter((rule) => ON[rule].on && !rules[rule].on)
    .map((rule) => ON[rule].words);
  return { alerts, unknown, off };
}

/** Value and note of a key figure. */
export function alertsCell(run) {
  const { alerts, unknown, off } = alertsOf(run);
  const number = alerts.reduce((sum, alert) => sum + alert.number, 0);
  const to = ({ words, page, part }) =>
    page
      ? h("a", { href: `/runs/${encodeURIComponent(run.run_id)}${page}` }, words)
      : h("a", { href: location.pathname + location.search, onclick: (event) => show(event, part) }, words);
  const rest = unknown.length > 0 && `unknown: ${unknown.join(", ")}`;
  const silent = off.length > 0 && h("a", { href: "/settings" }, `not counted: ${off.join(", ")}`);
  return {
    value: number > 0 ? count(number) : unknown.length > 0 ? "none known" : "none",
    note: [...alerts.map(to), rest, silent].filter(Boolean).flatMap((part, i) => (i ? [" · ", part] : [part])),
    number,
  };
}

function show(event, part) {
  event.preventDefault();
  const smooth = matchMedia("(prefers-reduced-motion: no-preference)").matches;
  document.querySelector(`main ${part}`)?.scrollIntoView({ block: "center", behavior: smooth ? "smooth" : "auto" });
}
