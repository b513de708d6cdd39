/** Table of holders, worst first. One of them is chosen; leak_detail.js shows its details. */

import { h } from "vramscope/dom.js";
import { bytes, count, perStep } from "vramscope/format.js";
import { tableDownload } from "vramscope/parts/table_download.js";
import { known, sized } from "vramscope/parts/ui.js";

/** Kinds whose memory can be freed at two times, with two effects on the peak. */
export const OVERLAPS = new Set(["overlap", "overlap-unfreed"]);

/** True for a result that is retained one step too long without raising the peak. It is not counted as a leak. */
export const isNote = (leak) => OVERLAPS.has(leak.kind) && !leak.peak_effect_bytes;

/** Source line of a leak, as `train.py:87`. Null if unknown. */
export function placeOf(leak) {
  if (!leak.file) return null;
  const name = leak.file.replaceAll("\\", "/").split("/").at(-1);
  return leak.line ? `${name}:${leak.line}` : name;
}

/** Plural of the unit that age and growth are counted in. */
const iterations = (per) => (per === "batch" ? "batches" : `${per}s`);

/** Age of a leak: `12 steps`. Without training, in batches of a loader or calls of the model. */
export const ageOf = (leak) =>
  leak.age_steps === 1 ? `1 ${leak.per}` : `${count(leak.age_steps)} ${iterations(leak.per)}`;

/** Class, head, content of a cell, and for which leaks the column is shown (null: always). */
const COLUMNS = [
  ["holder", "Holder", (leak) => leak.name],
  [
    "kind",
    "What",
    (leak) => [h("span", { class: "kind-words" }, leak.kind_words), h("span", { class: "below" }, leak.kind)],
  ],
  [
    "where",
    "Where",
    (leak) => (placeOf(leak) ? h("code", { title: leak.file }, placeOf(leak)) : known("unknown", { short: true })),
  ],
  ["number many", "Count", (leak) => count(leak.count)],
  ["number age", "Age", (leak) => known(leak.age_steps === null ? "unknown" : ageOf(leak), { short: true })],
  ["number held", "Retained", (leak) => bytes(leak.held_bytes)],
  [
    "number exclusive",
    "Exclusive",
    (leak) => bytes(leak.exclusive_bytes),
    (leaks) => leaks.some((leak) => leak.exclusive_bytes !== leak.held_bytes),
  ],
  ["number growth", "Growth", growthOf],
  ["number saved", "Peak effect", (leak) => sized(leak.peak_effect_bytes, { short: true })],
  ["number ranks", "Ranks", (leak) => rankWords(leak.ranks), (leaks, several) => several],
];

/** List of ranks, with ranges: 0–3, 7. */
export function rankWords(ranks) {
  const spans = [];
  for (const rank of ranks) {
    const last = spans.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else spans.push([rank, rank]);
  }
  return spans.map(([first, end]) => (first === end ? String(first) : `${first}–${end}`)).join(", ");
}

/** Growth per step. A container that is emptied regularly does not grow; its period is shown instead. */
function growthOf(leak) {
  if (leak.emptied_after !== null)
    return [
      "none",
      h("span", { class: "below" }, `emptied after ${count(leak.emptied_after)} ${iterations(leak.per)}`),
    ];
  return known(perStep(leak.growth_bytes_per_step, leak.per), { short: true });
}

/** Key that rows are sorted by, for the columns that have an order. */
const KEYS = {
  Holder: (leak) => leak.name.toLowerCase(),
  What: (leak) => leak.kind_words,
  Where: placeOf,
  Count: (leak) => leak.count,
  Age: (leak) => leak.age_steps,
  Retained: (leak) => leak.held_bytes,
  Exclusive: (leak) => leak.exclusive_bytes,
  Growth: (leak) => leak.growth_bytes_per_step,
  "Peak effect": (leak) => leak.peak_effect_bytes,
};

/** Leaks in the order of the table. `sort`: a TableSort. */
export const sortedLeaks = (leaks, sort) => sort.order(leaks, KEYS);

/**
 * Table of leaks of a run. `chosen`: id of the leak whose details are shown. `onChoose(id)` chooses another. `sort`: a
 * TableSort. Without it, they are in the server's order: the worst first.
 */
export function leaksTable(leaks, { run, chosen, several, sort, onChoose }) {
  const columns = COLUMNS.filter(([, , , isShown]) => !isShown || isShown(leaks, several));
  const row = (leak) =>
    h(
      "tr",
      {
        class: leak.id === chosen ? "selected" : null,
        "data-leak": leak.id,
        onclick: (event) => event.target.closest("button") || onChoose(leak.id),
      },
      columns.map(([kind, , content], i) =>
        i === 0
          ? h(
              "th",
              { scope: "row", class: kind },
              h(
                "button",
                {
                  class: "pick",
                  type: "button",
                  "aria-pressed": String(leak.id === chosen),
                  onclick: () => onChoose(leak.id),
                },
                content(leak),
              ),
            )
          : h("td", { class: kind }, content(leak)),
      ),
    );
  return h(
    "section",
    { class: "card leaks" },
    h(
      "header",
      {},
      h("h2", {}, "Retained by"),
      h("span", { class: "muted" }, several ? "highest values of all ranks" : ""),
      h("span", { class: "spring" }),
      tableDownload("leaks", () => ({ run })),
    ),
    h(
      "div",
      { class: "scroll", tabindex: "0" },
      h(
        "table",
        { class: "plain" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            columns.map(([kind, label]) => (KEYS[label] ? sort.head(label, kind) : h("th", { class: kind, scope: "col" }, label))),
          ),
        ),
        h("tbody", {}, sortedLeaks(leaks, sort).map(row)),
      ),
    ),
  );
}
