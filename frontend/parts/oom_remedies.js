/** Table of remedies, cheapest first: saving, cost, source of the number, and code to copy. */

import { h } from "vramscope/dom.js";

import { remedyCode } from "vramscope/parts/remedy_code.js";
import { sized, snippet } from "vramscope/parts/ui.js";

const ENOUGH = { true: ["enough", "good"], false: ["not enough", ""], null: ["may be enough", "maybe"] };

/** `framework`: framework of the run, for the code. */
export function remedyTable(error, framework) {
  const { remedies } = error;
  if (remedies.length === 0) {
    return h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Remedies")),
      h("div", { class: "pad" }, h("p", {}, error.first_aid || "The record has too little data.")),
    );
  }
  return h(
    "section",
    { class: "card oom-remedies" },
    h("header", {}, h("h2", {}, "Remedies"), h("span", { class: "muted" }, "sufficient ones first, cheapest first")),
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
            h("th", { scope: "col" }, "Remedy"),
            h("th", { scope: "col", class: "number" }, "Saves"),
            h("th", { scope: "col" }, ""),
            h("th", { scope: "col", class: "cost" }, "Costs"),
            h("th", { scope: "col", class: "source" }, "Source"),
          ),
        ),
        h("tbody", {}, remedies.map((remedy) => row(remedy, remedyCode(remedy, framework)))),
      ),
    ),
  );
}

function row(remedy, code) {
  const [words, kind] = ENOUGH[remedy.enough];
  const line = h(
    "tr",
    { class: code === null ? null : "has-code", "data-enough": String(remedy.enough) },
    h(
      "th",
      { scope: "row" },
      remedy.run_id ? h("a", { href: `/runs/${encodeURIComponent(remedy.run_id)}` }, remedy.what) : remedy.what,
      h("span", { class: "below remedy-cost" }, `Costs: ${remedy.cost}`),
    ),
    h("td", { class: "number saves" }, sized(remedy.saves_bytes, { short: true })),
    h("td", {}, h("span", { class: `chip ${kind}` }, words)),
    h("td", { class: "cost" }, remedy.cost),
    h(
      "td",
      { class: "source" },
      h("span", { class: "kind" }, remedy.source),
      h("span", { class: "below" }, remedy.source_words),
    ),
  );
  return code === null ? line : [line, codeRow(remedy, code)];
}

/** Row below a remedy with its code. A setting is open, because it is one line. */
function codeRow({ conf }, code) {
  return h(
    "tr",
    { class: "remedy-code" },
    h(
      "td",
      { colspan: 5 },
      h(
        "details",
        { open: conf !== null },
        h("summary", {}, conf !== null ? "Before the command" : "Code to copy"),
        snippet(code),
      ),
    ),
  );
}
