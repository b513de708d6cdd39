/** What is wrong with a run, counted, each with where it is told: leaks, out-of-memory errors, traps, peaks that are lower bounds. */

import { h } from "vramscope/dom.js";
import { count, stepCount } from "vramscope/format.js";

const many = (number, one, more) => `${count(number)} ${number === 1 ? one : more}`;

/**
 * `{alerts, unknown}`: of each kind that there is `{number, words, page}` (of this run) or `{number, words, part}` (a selector on its
 * page), and what nobody has looked for. Resets count as one, in however many steps they were, and only where they cost the
 * exact peak: many a script calls PyTorch's own function, which harms nothing.
 */
export function alertsOf(run) {
  const { leak_count: leaks, findings, foreign_reset_steps: resets, lower_bound_steps: bounds } = run;
  const died = /OutOfMemoryError$/.test(run.error_type ?? "") ? 1 : 0; // of which no record may have come
  const errors = Math.max(run.oom_records ?? 0, run.out_of_memory_count ?? 0, died);
  const alerts = [
    { number: leaks ?? 0, words: many(leaks, "leak", "leaks"), page: "/leaks" },
    { number: errors, words: many(errors, "out-of-memory error", "out-of-memory errors"), page: "/oom" },
    { number: findings?.length ?? 0, words: many(findings?.length, "finding", "findings"), part: ".findings" },
    { number: bounds > 0 ? 1 : 0, words: `counters reset in ${stepCount(bounds)}`, part: "vs-chart[data-figure=step_peaks]" },
  ].filter(({ number }) => number > 0);
  const unknown = [leaks === null && "leaks", findings === null && "traps", run.ranks.some((rank) => rank.peak_allocated_bytes !== null) && resets === null && "resets"].filter(Boolean);
  return { alerts, unknown };
}

/** Value and note of a key figure. */
export function alertsCell(run) {
  const { alerts, unknown } = alertsOf(run);
  const number = alerts.reduce((sum, alert) => sum + alert.number, 0);
  const to = ({ words, page, part }) => (page ? h("a", { href: `/runs/${encodeURIComponent(run.run_id)}${page}` }, words) : h("a", { href: location.pathname + location.search, onclick: (event) => show(event, part) }, words));
  const rest = unknown.length > 0 && `not looked for: ${unknown.join(", ")}`;
  return {
    value: number > 0 ? count(number) : unknown.length > 0 ? "none known" : "none",
    note: [...alerts.map(to), rest].filter(Boolean).flatMap((part, i) => (i ? [" · ", part] : [part])),
    number,
  };
}

function show(event, part) {
  event.preventDefault();
  const smooth = matchMedia("(prefers-reduced-motion: no-preference)").matches;
  document.querySelector(`main ${part}`)?.scrollIntoView({ block: "center", behavior: smooth ? "smooth" : "auto" });
}
