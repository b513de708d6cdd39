/** What changed before an out-of-memory error: against the last good step, and between the newest sample and the error. */

import { h } from "vramscope/dom.js";
import { bytes, count, isKnown, seconds, signedBytes, UNKNOWN } from "vramscope/format.js";
import { known, sized } from "vramscope/parts/ui.js";

/** Memory at the error, compared with the last step that finished. */
export function lastGoodStep({ now, last_step: last, step }) {
  if (!last) return null;
  const row = (name, then, at) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      h("td", { class: "number" }, sized(then, { short: true })),
      h("td", { class: "number" }, sized(at, { short: true })),
      h(
        "td",
        { class: "number" },
        isKnown(then) && isKnown(at) && then > 0 ? (at === then ? "equal" : signedBytes(at - then)) : "",
      ),
    );
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "Compared with the last good step")),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "plain oom-list" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", {}, ""),
            h("th", { class: "number" }, `step ${count(last.step)}`),
            h("th", { class: "number" }, `at the error, step ${count(step + 1)}`),
            h("th", { class: "number" }, "difference"),
          ),
        ),
        h(
          "tbody",
          {},
          row(
            "peak allocated",
            last.peak_allocated_bytes,
            Math.max(now.peak_allocated_bytes ?? 0, now.allocated_bytes ?? 0) || null,
          ),
          row("peak reserved", last.peak_reserved_bytes, now.reserved_bytes),
          row("allocated at the end", last.end_allocated_bytes, now.allocated_bytes),
        ),
      ),
    ),
  );
}

const INSTANT_SECONDS = 0.001;
const NOTABLE = 0.001; // of the larger number of bytes: some pages of resident memory come and go

/** Whether a counter differs enough to be worth reading. */
const hasChanged = ({ name, before, at }) =>
  isKnown(before) &&
  isKnown(at) &&
  Math.abs(at - before) > (name.endsWith("_bytes") ? NOTABLE * Math.max(Math.abs(before), Math.abs(at)) : 0);

/** Counters that changed between the newest sample and the error. The others are folded. */
export function counters({ counters: { before_seconds: taken, rows } }) {
  if (!rows.length) return null;
  const changed = rows.filter(hasChanged);
  const others = rows.filter((row) => !changed.includes(row));
  const before = isKnown(taken) ? (taken < INSTANT_SECONDS ? "just before" : `${seconds(taken)} before`) : "before";
  return h(
    "section",
    { class: "card", "data-counters": "" },
    h("header", {}, h("h2", {}, "What changed at the error"), taken >= INSTANT_SECONDS && h("span", { class: "muted" }, `since ${before}`)),
    changed.length > 0
      ? countersTable(changed, before)
      : h("p", { class: "pad muted" }, `No counter differs notably from the sample ${before}.`),
    others.length > 0 &&
      h(
        "details",
        { class: "other-counters" },
        h("summary", {}, `${count(others.length)} counters without a notable change`),
        countersTable(others, before),
      ),
  );
}

function countersTable(rows, before) {
  const text = (name, value) => (isKnown(value) ? (name.endsWith("_bytes") ? bytes(value) : count(value)) : UNKNOWN);
  const change = (name, by) =>
    by === 0 ? "equal" : name.endsWith("_bytes") ? signedBytes(by) : `${by < 0 ? "−" : "+"}${count(Math.abs(by))}`;
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "plain oom-list" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("td", {}),
          [before, "at the error", "change"].map((label) => h("th", { class: "number", scope: "col" }, label)),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map(({ name, before: then, at }) =>
          h(
            "tr",
            { "data-counter": name },
            h("th", { scope: "row" }, name.replace(/_bytes$/, "").replaceAll("_", " ")),
            h("td", { class: "number" }, known(text(name, then), { short: true })),
            h("td", { class: "number" }, known(text(name, at), { short: true })),
            h("td", { class: "number change" }, isKnown(then) && isKnown(at) ? change(name, at - then) : ""),
          ),
        ),
      ),
    ),
  );
}
