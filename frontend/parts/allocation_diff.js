/** Difference between two events of a recording: allocations that are alive at B and not at A, and the reverse. */

import { fill, h } from "vramscope/dom.js";
import { bytes, count } from "vramscope/format.js";
import { eventText } from "vramscope/parts/timeline.js";

export class AllocationDiff {
  /** load(part, parameters, signal); onAllocation(number) shows an allocation; onClear(). */
  constructor({ load, onAllocation, onClear }) {
    Object.assign(this, { load, onAllocation });
    this.body = h("div");
    this.element = h(
      "section",
      { class: "card between", "aria-label": "Compare two moments", hidden: true },
      h(
        "header",
        {},
        h("h3", {}, "From A to B"),
        h("span", { class: "spring" }),
        h("button", { class: "button small quiet", type: "button", onclick: onClear }, "Remove A and B"),
      ),
      this.body,
    );
  }

  /** Shows the difference, with rows grouped by `by`. Hidden unless A or B is set. */
  async show(a, b, by) {
    const key = `${a} ${b} ${by}`;
    if (key === this.shown) return;
    this.shown = key;
    this.request?.abort();
    this.element.hidden = a === null && b === null;
    if (this.element.hidden) return;
    if (a === null || b === null) {
      fill(
        this.body,
        h(
          "p",
          { class: "pad muted" },
          `${a === null ? "B" : "A"} is set. Click another event in the timeline and set ${a === null ? "A" : "B"} there.`,
        ),
      );
      return;
    }
    const request = (this.request = new AbortController());
    try {
      const difference = await this.load("between", { a, b, by }, request.signal);
      if (this.request === request) this.draw(difference);
    } catch (problem) {
      if (problem.name !== "AbortError") fill(this.body, h("p", { class: "pad muted" }, problem.message));
    }
  }

  close() {
    this.request?.abort();
  }

  reset() {
    this.shown = null;
  }

  draw({ a, b, appeared, gone, both_bytes: both }) {
    const change = b.allocated_bytes - a.allocated_bytes;
    const end = (name, point) => [
      h("dt", {}, name),
      h("dd", {}, h("strong", {}, bytes(point.allocated_bytes)), ` · ${eventText(point)}`),
    ];
    fill(
      this.body,
      h(
        "div",
        { class: "pad" },
        h(
          "dl",
          { class: "facts" },
          end("A", a),
          end("B", b),
          h("dt", {}, "change"),
          h(
            "dd",
            { "data-change": change },
            h("strong", {}, `${change > 0 ? "+" : ""}${bytes(change)}`),
            h("span", { class: "muted" }, ` · ${bytes(both)} alive at both`),
          ),
        ),
      ),
      h(
        "div",
        { class: "between-tables" },
        this.table("Alive at B, not at A", "+", appeared),
        this.table("Alive at A, not at B", "−", gone),
      ),
    );
  }

  table(title, sign, { bytes: sum, allocations, rows, left_out: left }) {
    return h(
      "div",
      {},
      h(
        "h4",
        {},
        `${title}: `,
        h("span", { class: "tabular" }, `${sum ? sign : ""}${bytes(sum)}`),
        h("span", { class: "muted" }, ` in ${count(allocations)} allocations`),
      ),
      rows.length > 0 &&
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
                h("th", { scope: "col" }, "allocated by"),
                ["bytes", "allocations", "largest"].map((name) => h("th", { class: "number", scope: "col" }, name)),
              ),
            ),
            h(
              "tbody",
              {},
              rows.map((row) =>
                h(
                  "tr",
                  {},
                  h(
                    "th",
                    { scope: "row" },
                    h(
                      "button",
                      {
                        class: "link",
                        type: "button",
                        title: "show the first one",
                        onclick: () => this.onAllocation(row.first),
                      },
                      row.name,
                    ),
                  ),
                  h("td", { class: "number" }, bytes(row.bytes)),
                  h("td", { class: "number" }, count(row.allocations)),
                  h("td", { class: "number" }, bytes(row.largest_bytes)),
                ),
              ),
            ),
          ),
        ),
      left.groups > 0 && h("p", { class: "muted" }, `and ${count(left.groups)} more, ${bytes(left.bytes)} together`),
    );
  }
}
