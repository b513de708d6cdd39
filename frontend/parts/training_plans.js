/** Predicted peaks of a recorded step under other techniques, alone and combined. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { count, isKnown, percent } from "vramscope/format.js";
import { timeWords, workOf } from "vramscope/parts/plan_work.js";
import { plansPlot } from "vramscope/parts/plans_plot.js";
import { problemBanner, sized } from "vramscope/parts/ui.js";

/** What a technique costs besides time. */
const COSTS = [
  [
    ({ gradient_accumulation: parts }) => parts > 1,
    "smaller batches use the GPU less; batch normalization sees fewer rows",
  ],
  [({ gradient_checkpointing: used }) => used, "one more forward pass of the blocks in each step"],
  [({ optimizer_8bit: used }) => used, "rounded optimizer state"],
  [({ no_foreach: used }) => used, "more, smaller kernels in the optimizer step"],
];

const costsOf = ({ techniques }) => COSTS.filter(([uses]) => uses(techniques)).map(([, costs]) => costs);

/** The recorded way first, then the others, largest saving first and fewer costs first. */
const ranked = ([recorded, ...others]) => [
  recorded,
  ...others.sort(
    (one, other) =>
      (other.saved_bytes ?? 0) - (one.saved_bytes ?? 0) || costsOf(one).length - costsOf(other).length,
  ),
];

export class TrainingPlans {
  /** `capacity()`: bytes of the card, or null. */
  constructor(capacity = () => null) {
    this.capacity = capacity;
    this.body = h("div", {});
    this.from = h("span", { class: "muted" });
    this.element = h(
      "section",
      { class: "card other-ways", "aria-label": "Predictions for other techniques", "aria-live": "polite" },
      h("header", {}, h("h2", {}, "Predictions for other techniques"), h("span", { class: "spring" }), this.from),
      this.body,
    );
  }

  /** Requests the predictions for a recording and shows them. A later request cancels this one. */
  async open(recording, after = null) {
    this.request?.abort();
    const request = (this.request = new AbortController());
    fill(this.from);
    fill(this.body, h("p", { class: "pad muted" }, "computing…"));
    try {
      await after;
      if (this.request !== request) return;
      const prediction = await api.recording(recording, "prediction", {}, request.signal);
      if (this.request !== request) return;
      fill(this.from, isKnown(prediction.step) && `predicted from step ${count(prediction.step)}`);
      fill(this.body, predictionContent(prediction, this.capacity()));
    } catch (error) {
      if (this.request === request && error.name !== "AbortError")
        fill(this.body, h("div", { class: "pad" }, problemBanner(error)));
    }
  }

  close() {
    this.request?.abort();
  }
}

export function predictionContent({ rows, furthest_rows: furthest, notes }, capacity = null) {
  const others = rows.slice(1);
  return [
    plansPlot(
      rows.map((row, at) => ({
        name: at === 0 ? "as recorded" : planText(row),
        work: workOf(row.techniques, rows[0].techniques),
        peak: row.peak_allocated_bytes,
        recorded: at === 0,
      })),
      capacity,
    ),
    others.length > 0
      ? table(rows, furthest)
      : rows.length > 0 &&
        h("p", { class: "pad muted", "data-none": true }, "No predictable technique lowers the peak by 1 % or more."),
    h(
      "ul",
      { class: "other-ways-notes" },
      notes.map((note) => h("li", {}, note)),
      others.length > 0 &&
        isKnown(furthest) &&
        rows.every((row) => row.rows_that_fit >= furthest) &&
        h("li", {}, `${count(furthest)} rows fit on this device with each of them. Larger batches were not predicted.`),
      others.length > 0 &&
        h("li", {}, "Predicted by replay (allocated memory only). Mixed precision is not predicted."),
    ),
  ];
}

function table(rows, furthest) {
  const fitting = rows.some((row) => isKnown(row.rows_that_fit) && row.rows_that_fit < furthest); // otherwise all rows are alike
  const most = rows[0].peak_allocated_bytes;
  return h(
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
          h("th", { scope: "col" }, "Trained with"),
          h("th", { scope: "col", class: "number" }, "Peak allocated"),
          h("th", { scope: "col", class: "number" }, "Saved"),
          h(
            "th",
            {
              scope: "col",
              class: "time",
              title: "by the work of a step, at most: a backward pass counts as two forward passes; not measured",
            },
            "Expected step time",
          ),
          h("th", { scope: "col", class: "cost" }, "Cost"),
          fitting &&
            h(
              "th",
              { scope: "col", class: "number", title: "on the recorded device, with 5 % left for fragmentation" },
              "Rows that fit",
            ),
        ),
      ),
      h(
        "tbody",
        {},
        ranked(rows).map((row) => line(row, { recorded: rows[0], most, fitting, furthest })),
      ),
    ),
  );
}

function line(row, { recorded: first, most, fitting, furthest }) {
  const recorded = row === first;
  const { peak_allocated_bytes: peak, saved_bytes: saved } = row;
  return h(
    "tr",
    { class: recorded ? "recorded" : null },
    h("th", { scope: "row" }, recorded ? "as recorded" : planText(row), !recorded && phoneNote(row, first)),
    h(
      "td",
      { class: "number" },
      sized(peak),
      h("span", { class: "share", style: { "--share": String(peak / most) }, "aria-hidden": "true" }),
    ),
    h(
      "td",
      { class: "number" },
      recorded
        ? h("span", { class: "muted" }, "—")
        : [sized(saved), " ", h("span", { class: "muted" }, percent(saved / most, 0))],
    ),
    h("td", { class: "time" }, recorded ? h("span", { class: "muted" }, "—") : timeWords(row.techniques, first.techniques)),
    h("td", { class: "cost muted" }, recorded ? "—" : costsOf(row).join("; ") || "none known"),
    fitting && h("td", { class: "number" }, fits(row.rows_that_fit, furthest)),
  );
}

/** Expected time and cost below the name. On a phone they are there instead of in columns (advice.css). */
const phoneNote = (row, first) =>
  h("span", { class: "phone-note" }, `step time: ${timeWords(row.techniques, first.techniques)}`, costsOf(row).map((words) => `; ${words}`));

/** Number of rows that fit. Larger batches than `furthest` were not predicted. */
function fits(rows, furthest) {
  if (!isKnown(rows)) return h("span", { class: "muted" }, "unknown");
  if (rows === 0) return h("span", { class: "more" }, "none");
  return rows >= furthest ? `${count(rows)} or more` : count(rows);
}

/** Techniques in words: "accumulation 4 × 16 rows + checkpointing". */
export function planText({
  rows,
  techniques: {
    gradient_accumulation: parts,
    gradient_checkpointing: checkpointing,
    optimizer_8bit: eightBit,
    no_foreach: loop,
  },
}) {
  return [
    parts > 1 && `accumulation ${parts}${isKnown(rows) ? ` × ${count(rows)} ${rows === 1 ? "row" : "rows"}` : ""}`,
    checkpointing && "checkpointing",
    eightBit && "8-bit state",
    loop && "foreach=False",
  ]
    .filter(Boolean)
    .join(" + ");
}
