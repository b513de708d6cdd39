/** Peaks of runs under other allocator settings: predicted from the baseline's recording, and measured. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown, signedPercent } from "vramscope/format.js";
import { ComparedCard } from "vramscope/parts/compared_card.js";
import { known, sized } from "vramscope/parts/ui.js";
import { jobProgress, WhatIfJob } from "vramscope/parts/whatif_question.js";
import { bandMeans, certainty } from "vramscope/parts/whatif_table.js";

/** Card of the predictions. Hidden unless the compared runs differ in settings and the baseline has a recording. */
export class Predictions extends ComparedCard {
  constructor() {
    super("predictions", api.predictions);
  }

  close() {
    this.job?.cancel();
    super.close();
  }

  setAnswer(comparison) {
    this.comparison = comparison;
    const settings = new Set(comparison.rows.map((row) => row.conf).filter((conf) => conf !== null));
    if (settings.size < 2 || !comparison.recording) return false;
    this.job = new WhatIfJob(comparison.recording.recording, { confs: [...settings] }, () => this.draw());
    this.draw();
    return true;
  }

  draw() {
    const { comparison, job } = this;
    const result = job.answer?.result;
    const steps =
      comparison.steps &&
      (comparison.steps.first === comparison.steps.last
        ? `step ${count(comparison.steps.first)}`
        : `steps ${count(comparison.steps.first)} to ${count(comparison.steps.last)}`);
    const reasons = [
      ...new Set((result ? comparison.rows : []).flatMap((row) => this.predictedFor(row, result)?.reasons ?? [])),
    ];
    fill(
      this.element,
      h(
        "header",
        {},
        h("h2", {}, "Allocator settings: predicted and measured"),
        h("span", { class: "muted" }, steps && `peak reserved in ${steps}`),
      ),
      h(
        "div",
        { class: "pad" },
        job.problem && h("p", { class: "more" }, job.problem.detail),
        jobProgress(job),
        result &&
          h(
            "p",
            { class: "muted" },
            "From ",
            h(
              "a",
              {
                href: `/runs/${encodeURIComponent(comparison.recording.run_id)}/fragmentation?recording=${comparison.recording.recording}`,
              },
              "a recording of the baseline",
            ),
            ", replayed under each run’s settings. ",
            result.residual.words,
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
              ["Run", "Settings"].map((label) => h("th", { scope: "col" }, label)),
              ["Predicted", "Measured", "Error"].map((label) => h("th", { scope: "col", class: "number" }, label)),
            ),
          ),
          h(
            "tbody",
            {},
            comparison.rows.map((row) => this.line(row, result)),
          ),
        ),
      ),
      reasons.length > 0 &&
        h(
          "ul",
          { class: "whatif-notes muted" },
          reasons.map((reason) => h("li", {}, reason)),
        ),
    );
  }

  /** Prediction for a row. For the baseline it is the replay of the recorded settings. */
  predictedFor(row, result) {
    return result?.rows.find((other) => (row === this.comparison.rows[0] ? other.recorded : other.conf === row.conf));
  }

  line(row, result) {
    const predicted = this.predictedFor(row, result);
    const value = predicted ? predicted.peak_reserved_bytes : null;
    const measured = row.measured_peak_reserved_bytes;
    const error = isKnown(value) && measured > 0 ? value / measured - 1 : null;
    return h(
      "tr",
      { "data-run": row.run },
      h("th", { scope: "row" }, h("a", { href: `/runs/${encodeURIComponent(row.run)}` }, row.name)),
      h("td", {}, row.conf === null ? known("unknown") : h("code", {}, row.conf || "default settings")),
      h(
        "td",
        { class: "number" },
        result ? sized(value) : "…",
        predicted && bandOf(predicted),
        predicted && certainty(predicted),
        predicted?.out_of_memory && h("span", { class: "more" }, " out of memory"),
      ),
      h("td", { class: "number" }, sized(measured)),
      h("td", { class: "number" }, result ? known(signedPercent(error)) : ""),
    );
  }
}

/** Band of a prediction, for a device that is never full. */
function bandOf(row) {
  const { band } = row;
  return (
    band &&
    band[0] !== band[1] &&
    h("span", { class: "below", title: bandMeans(row) }, `${bytes(band[0])} – ${bytes(band[1])}`)
  );
}
