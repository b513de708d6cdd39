/** Table of all ranks at the time of an out-of-memory error. */

import { h } from "vramscope/dom.js";
import { bytes, count, isKnown, seconds, UNKNOWN } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";

const OWNERS = ["parameters", "gradients", "optimizer", "buffers", "other models"];
const ROLES = { "other models": "workspaces" };

/** Null for a single rank. `chosen`: record whose segments are shown. `onChoose(record)` chooses another. */
export function ranksTable({ ranks }, { chosen, onChoose }) {
  if (!ranks.length) return null;
  const most = Math.max(...ranks.map((rank) => rank.total_bytes ?? rank.reserved_bytes ?? 0), 1);
  const silent = ranks.filter((rank) => !rank.record).length;
  return h(
    "section",
    { class: "card oom-ranks" },
    h(
      "header",
      {},
      h("h2", {}, "All ranks at the error"),
      h(
        "span",
        { class: "muted" },
        silent ? `no record from ${count(silent)} of ${count(ranks.length)}` : count(ranks.length),
      ),
    ),
    h(
      "div",
      { class: "scroll oom-scroll", tabindex: "0" },
      h(
        "table",
        { class: "plain oom-list" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Rank", "Phase"].map((name) => h("th", { scope: "col" }, name)),
            ["Requested", "Free on the device", "Allocated", "Reserved"].map((name) =>
              h("th", { scope: "col", class: "number" }, name),
            ),
            h("th", { scope: "col" }, h("span", { class: "offscreen" }, "segments")),
          ),
        ),
        h(
          "tbody",
          {},
          ranks.map((rank) => row(rank, most, { chosen, onChoose })),
        ),
      ),
    ),
  );
}

function row(rank, most, { chosen, onChoose }) {
  const what = { true: ["ran out", "bad"], false: ["waited", ""], null: ["no record", "unknown"] }[rank.ran_out];
  const when = [isKnown(rank.step) && `step ${count(rank.step + 1)}`, rank.phase, rank.module]
    .filter(Boolean)
    .join(" · ");
  const origin = rank.record
    ? rank.asked_by && `reported by ${rank.asked_by}, ${seconds(Math.max(0, rank.after_seconds))} later`
    : isKnown(rank.as_of_seconds) && `its newest sample, ${seconds(-rank.as_of_seconds)} before`;
  const number = (value) =>
    h("td", { class: "number" }, known(isKnown(value) ? bytes(value) : UNKNOWN, { short: true }));
  return h(
    "tr",
    { "data-rank": String(rank.rank), "data-ran-out": String(rank.ran_out) },
    h("th", { scope: "row" }, `rank ${rank.rank}`, " ", h("span", { class: `chip ${what[1]}` }, what[0])),
    h(
      "td",
      {},
      rank.file
        ? h("code", { title: `${rank.file}:${rank.line}` }, `${rank.file.split("/").at(-1)}:${rank.line}`)
        : known(UNKNOWN, { short: true }),
      h("span", { class: "below" }, when),
      origin && h("span", { class: "below" }, origin),
    ),
    h(
      "td",
      { class: "number" },
      rank.ran_out ? known(isKnown(rank.asked_bytes) ? bytes(rank.asked_bytes) : UNKNOWN, { short: true }) : "",
    ),
    number(rank.free_bytes),
    h(
      "td",
      { class: "number" },
      known(isKnown(rank.allocated_bytes) ? bytes(rank.allocated_bytes) : UNKNOWN, { short: true }),
      bar(rank, most),
    ),
    number(rank.reserved_bytes),
    h(
      "td",
      {},
      rank.record &&
        h(
          "button",
          {
            class: "button small",
            type: "button",
            "aria-pressed": String(rank.record === chosen),
            onclick: () => onChoose(rank.record),
          },
          "Segments",
        ),
    ),
  );
}

/** Allocated memory by category, relative to the largest device. */
function bar(rank, most) {
  const parts = OWNERS.map((name) => [name, rank[`${name.replace(" ", "_")}_bytes`]]).filter(([, size]) => size);
  const rest = (rank.allocated_bytes ?? 0) - parts.reduce((sum, [, size]) => sum + size, 0);
  if (parts.length && rest > 0) parts.push(["activations", rest]);
  return h(
    "span",
    { class: "oom-bar" },
    parts.map(([name, size]) =>
      h("span", {
        title: `${name}: ${bytes(size)}`,
        style: { width: `${((size / most) * 100).toFixed(2)}%`, "--colour": `var(--role-${ROLES[name] ?? name})` },
      }),
    ),
  );
}
