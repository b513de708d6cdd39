/** Elements that pages share: unknown value, meter, sparkline, snippet, and banners. */

import { h, svg, copyButton } from "vramscope/dom.js";
import { UNKNOWN, bytes, clock, exactBytes, isKnown, percent } from "vramscope/format.js";
import { shareOf, sparklinePaths } from "vramscope/series.js";

/** Text of a value. "unknown" is styled differently. `short`: a dash with "unknown" as its title, for dense tables. */
export function known(text, { short = false } = {}) {
  if (text !== UNKNOWN) return text;
  return h(
    "span",
    { class: "unknown", title: "unknown" },
    short ? "—" : UNKNOWN,
    short && h("span", { class: "offscreen" }, "unknown"),
  );
}

/** A size, with its exact bytes on hover. `short`: as in `known`. */
export const sized = (value, options = {}) =>
  isKnown(value) ? h("span", { title: exactBytes(value) }, bytes(value)) : known(UNKNOWN, options);

/** Text whose parts between backticks are code. */
export const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

/** Bar of `value` relative to `ceiling`. Null if either is unknown. */
export function meter(value, ceiling) {
  const share = shareOf(value, ceiling);
  if (share === null) return null;
  return h(
    "span",
    {
      class: `meter${share > 0.9 ? " high" : ""}`,
      title: `${percent(share)} of the capacity`,
      style: { "--share": share.toFixed(4) },
    },
    h("span"),
  );
}

/** Sparkline of a run's peaks, 84 by 26, from zero to `ceiling`. Null: to the highest of its values. */
export function sparkline(values, ceiling = null) {
  if (!values || !values.some(isKnown)) return null;
  const { line, area } = sparklinePaths(values, 84, 26, ceiling);
  return svg(
    "svg",
    { viewBox: "0 0 84 26", role: "img", "aria-label": "peak allocated over the run" },
    svg("path", { class: "area", d: area }),
    svg("path", { class: "line", d: line }),
  );
}

/** Mark of a part that needs a role. It is shown on servers that require tokens. */
export const roleMark = (role) =>
  h("span", { class: "chip role-mark", title: `changes need a token with the role ${role}` }, `role ${role}`);

export function snippet(text) {
  return h(
    "div",
    { class: "snippet" },
    h("pre", {}, h("code", {}, text)),
    copyButton("Copy", () => text),
  );
}

/** Banner of a problem. Suggestions become links to runs. */
export function problemBanner(problem) {
  return h(
    "div",
    { class: "banner bad", role: "alert" },
    h("strong", {}, problem.title ?? "Something went wrong"),
    h("span", {}, problem.detail || (problem.message !== problem.title && problem.message)),
    problem.suggestions?.length
      ? h(
          "span",
          {},
          "Did you mean ",
          problem.suggestions.map((run, i) => [i ? ", " : "", suggestion(run)]),
          "?",
        )
      : null,
  );
}

function suggestion(run) {
  const id = typeof run === "string" ? run : (run.run_id ?? run.name);
  const name = typeof run === "string" ? run : (run.name ?? run.run_id);
  return h("a", { href: `/runs/${encodeURIComponent(id)}` }, name);
}

/** Banner of a lost connection. `live`: state of the connection. */
export function staleBanner(live) {
  return h(
    "div",
    { class: "banner warn", role: "status", "data-stale": true },
    h("strong", {}, `Data stale since ${clock(live.staleSince)}.`),
    "The server does not answer. The training continues and its data is sent later.",
  );
}
