/** Peaks of runs with other techniques: predicted from the baseline's recording, and measured. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { count, isKnown, signedPercent } from "vramscope/format.js";
import { ComparedCard } from "vramscope/parts/compared_card.js";
import { planText } from "vramscope/parts/training_plans.js";
import { known, sized } from "vramscope/parts/ui.js";

/**
 * Card of the predictions. Hidden unless a compared run differs from the baseline in techniques that can be predicted.
 */
export class TechniquePredictions extends ComparedCard {
  constructor() {
    super("technique-predictions", api.techniquePredictions);
  }

  setAnswer({ recording, step, rows }) {
    if (rows.length === 0) return false;
    fill(
      this.element,
      h(
        "header",
        {},
        h("h2", {}, "Techniques: predicted and measured"),
        h("span", { class: "muted" }, "peak allocated"),
      ),
      h(
        "div",
        { class: "pad" },
        h(
          "p",
          { class: "muted" },
          "From ",
          h(
            "a",
            { href: `/runs/${encodeURIComponent(recording.run_id)}/anatomy?recording=${recording.recording}` },
            "a recording of the baseline",
          ),
          isKnown(step) && `, its step ${count(step)}`,
          ". Error: share of the measured peak.",
        ),
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
              ["Run", "Trained with"].map((label) => h("th", { scope: "col" }, label)),
              ["Predicted", "Measured", "Error"].map((label) => h("th", { scope: "col", class: "number" }, label)),
            ),
          ),
          h("tbody", {}, rows.map(line)),
        ),
      ),
    );
    return true;
  }
}

function line(row) {
  const { predicted_peak_allocated_bytes: predicted, measured_peak_allocated_bytes: measured } = row;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, h("a", { href: `/runs/${encodeURIComponent(row.run)}` }, row.name)),
    h("td", {}, planText(row)),
    h("td", { class: "number" }, sized(predicted, { short: true })),
    h("td", { class: "number" }, sized(measured, { short: true })),
    h(
      "td",
      { class: "number" },
      known(isKnown(predicted) && measured ? signedPercent(predicted / measured - 1) : "unknown", { short: true }),
    ),
  );
}
