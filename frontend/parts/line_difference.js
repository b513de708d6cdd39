/** Difference between a run and the baseline by source line, at their peaks, from a recording of each. */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, categoryName, count, isKnown } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";
import { setQuery } from "vramscope/store.js";

const FEW = 12;

/** Card of the difference. Hidden unless the baseline and another run have recordings. */
export class LineDifference {
  constructor() {
    this.choice = h("select", { "aria-label": "Compare with the baseline" });
    this.choice.addEventListener("change", () => setQuery({ sites: this.choice.value }));
    this.summary = h("span", { class: "muted" });
    this.timelines = chart({
      title: "One step of each run, at its peak",
      file: "compare-step-timelines",
      load: (signal) => api.compareTimelines(this.pair, signal),
      live: null,
    });
    this.timelines.classList.add("wide");
    this.timelines.dataset.figure = "step_timelines";
    this.charts = h("div", { class: "charts", hidden: true }, this.timelines);
    this.body = h("div");
    this.element = h(
      "section",
      { class: "card site-difference", hidden: true },
      h("header", {}, h("h2", {}, "Memory by source line"), this.summary, h("span", { class: "spring" }), this.choice),
      this.body,
    );
    this.parts = [this.charts, this.element];
  }

  close() {
    this.request?.abort();
  }

  /** `rows`: rows of the comparison, the baseline first. `chosen`: id of the run that is compared with the baseline. */
  show(rows, chosen) {
    const recorded = rows.filter((row) => row.recordings > 0);
    const [base, ...others] = recorded;
    const possible = recorded.length > 1 && base === rows[0];
    this.element.hidden = this.charts.hidden = !possible;
    if (!possible) {
      this.key = null;
      this.close();
      return;
    }
    const other = others.find((row) => row.run === chosen) ?? others[0];
    fill(
      this.choice,
      others.map((row) => h("option", { value: row.run, selected: row === other }, `${row.name} against ${base.name}`)),
    );
    this.choice.disabled = others.length === 1;
    const key = `${base.run} ${base.recordings} ${other.run} ${other.recordings}`;
    if (key === this.key) return;
    this.key = key;
    this.all = false;
    this.pair = { a: base.run, b: other.run, place: rows.indexOf(other) };
    this.timelines.reload();
    this.load(base, other);
  }

  async load(base, other) {
    this.close();
    const request = (this.request = new AbortController());
    fill(this.body, h("p", { class: "pad muted", role: "status" }, "Opening the two recordings…"));
    this.summary.textContent = "";
    try {
      this.difference = await api.compareSites({ a: base.run, b: other.run }, request.signal);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.body, h("p", { class: "pad more" }, error.detail || error.message));
      return;
    }
    this.names = [base.name, other.name];
    this.draw();
  }

  draw() {
    const { difference, names } = this;
    const differing = difference.rows.filter((row) => row.difference_bytes !== 0);
    const shown = this.all ? differing : differing.slice(0, FEW);
    const most = Math.max(...differing.map((row) => Math.abs(row.difference_bytes)), 1);
    this.summary.textContent = `at their peaks: ${bytes(difference.a.allocated_bytes)} and ${bytes(difference.b.allocated_bytes)}, ${signed(difference.difference_bytes)}`;
    const rest = difference.difference_bytes - shown.reduce((sum, row) => sum + row.difference_bytes, 0);
    const hidden = differing.length - shown.length;
    fill(
      this.body,
      h("p", { class: "pad muted" }, peakNote(names[0], difference.a), " ", peakNote(names[1], difference.b)),
      differing.length === 0 && h("p", { class: "pad" }, "No difference by source line."),
      differing.length > 0 &&
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
                h("th", { scope: "col" }, "Line"),
                h("th", { scope: "col", class: "number" }, "Difference"),
                ["Module", "For"].map((name) => h("th", { scope: "col" }, name)),
                names.map((name) => h("th", { scope: "col", class: "number" }, name)),
              ),
            ),
            h(
              "tbody",
              {},
              shown.map((row) => line(row, most)),
              (hidden > 0 || rest !== 0) &&
                h(
                  "tr",
                  { class: "muted" },
                  h(
                    "th",
                    { scope: "row" },
                    hidden > 0 ? `${count(hidden + difference.left_out.sites)} more` : "not listed",
                  ),
                  h("td", { class: "number" }, signed(rest)),
                  h("td", { colspan: 4 }),
                ),
            ),
          ),
        ),
      hidden > 0 &&
        h(
          "p",
          { class: "pad" },
          h(
            "button",
            { class: "button small", type: "button", onclick: () => this.showAll() },
            `Show all ${count(differing.length)}`,
          ),
        ),
      categoryNote(difference),
    );
  }

  showAll() {
    this.all = true;
    this.draw();
  }
}

const signed = (difference) =>
  difference === 0 ? "no difference" : `${difference > 0 ? "+" : "−"}${bytes(Math.abs(difference))}`;

/** Step and phase of a side, and whether it is below the run's peak or without stacks. */
function peakNote(name, side) {
  const where = [isKnown(side.step) && `step ${count(side.step)}`, side.phase].filter(Boolean).join(", ");
  const peak = isKnown(side.run_peak_allocated_bytes) ? side.run_peak_allocated_bytes : side.peak_bytes;
  const below = peak - side.allocated_bytes > 0.005 * peak;
  return [
    name,
    where && ` in ${where}`,
    below &&
      `: ${bytes(side.allocated_bytes)} of the run’s peak of ${bytes(peak)}; no recording of the peak has stacks`,
    !side.stacks && ": no stacks recorded, source lines unknown",
    ".",
  ];
}

function line(row, most) {
  const numbers = [...new Set([row.a_line, row.b_line].filter(isKnown))].join(" → ");
  const name = row.file ? `${row.file.split(/[\\/]/).slice(-2).join("/")}:${numbers}` : row.without_stack;
  const share = (Math.abs(row.difference_bytes) / most).toFixed(4);
  const more = row.difference_bytes > 0;
  return h(
    "tr",
    {},
    h(
      "th",
      { scope: "row", title: row.file ?? null },
      row.file ? h("code", {}, name) : name,
      row.function && h("span", { class: "below" }, row.function),
    ),
    h(
      "td",
      { class: "number" },
      h("span", { class: more ? "more" : "less" }, signed(row.difference_bytes)),
      h("span", { class: `meter difference ${more ? "more" : "less"}`, style: { "--share": share } }, h("span")),
    ),
    h("td", { class: "module" }, row.module ? h("code", {}, row.module) : known("unknown", { short: true })),
    h("td", {}, row.category_words ?? known("unknown", { short: true })),
    h("td", { class: "number" }, row.a_allocations ? bytes(row.a_bytes) : "—"),
    h("td", { class: "number" }, row.b_allocations ? bytes(row.b_bytes) : "—"),
  );
}

function categoryNote(difference) {
  const differing = difference.categories.filter((one) => one.difference_bytes !== 0);
  return (
    differing.length > 0 &&
    h(
      "p",
      { class: "pad muted" },
      "By category: ",
      differing.map((one, i) => [i > 0 && ", ", `${categoryName(one.category)} ${signed(one.difference_bytes)}`]),
      ".",
    )
  );
}
