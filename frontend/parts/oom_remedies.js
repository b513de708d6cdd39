/** Table of remedies, cheapest first: saving, cost, and source of the number. */

import { copyButton, h } from "vramscope/dom.js";
import { bytes } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";

const ENOUGH = { true: ["enough", "good"], false: ["not enough", ""], null: ["may be enough", "maybe"] };

export function remedyTable(error) {
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
        h("tbody", {}, remedies.map(row)),
      ),
    ),
  );
}

function row(remedy) {
  const [words, kind] = ENOUGH[remedy.enough];
  return h(
    "tr",
    { "data-enough": String(remedy.enough) },
    h(
      "th",
      { scope: "row" },
      remedy.conf !== null
        ? [h("code", {}, remedy.what), " ", copyButton("Copy", () => remedy.what)]
        : remedy.run_id
          ? h("a", { href: `/runs/${encodeURIComponent(remedy.run_id)}` }, remedy.what)
          : remedy.what,
    ),
    h("td", { class: "number" }, known(bytes(remedy.saves_bytes), { short: true })),
    h("td", {}, h("span", { class: `chip ${kind}` }, words)),
    h("td", { class: "cost" }, remedy.cost),
    h(
      "td",
      { class: "source" },
      h("span", { class: "kind" }, remedy.source),
      h("span", { class: "below" }, remedy.source_words),
    ),
  );
}
