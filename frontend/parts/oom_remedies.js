/** Table of remedies, cheapest first: saving, cost, source of the number, and code to copy. */

import { h } from "vramscope/dom.js";
import { bytes, exactBytes, isKnown } from "vramscope/format.js";
import { remedyCode } from "vramscope/parts/remedy_code.js";
import { sized, snippet } from "vramscope/parts/ui.js";

const ENOUGH = { true: ["enough", "good"], false: ["not enough", ""], null: ["may be enough", "maybe"] };

/** Saving of a remedy. One that is enough saves at least the excess. A larger device saves nothing: it has more. */
function saving({ saves_bytes: saves, card_bytes: card, enough }, excess) {
  if (isKnown(card) && isKnown(saves)) return h("span", { class: "more", title: exactBytes(saves) }, `${bytes(saves)} more`);
  if (!isKnown(saves) && enough && excess > 0) return ["at least ", sized(excess)];
  return sized(saves, { short: true });
}

/** Bytes by which the least need of the step exceeds what PyTorch can use. 0 if it does not, or is not known. */
const excessOf = ({ needed_least_bytes: need, room_bytes: room }) =>
  isKnown(need) && isKnown(room) ? Math.max(0, need - room) : 0;

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
            h("th", { scope: "col" }, "Enough?"),
            h("th", { scope: "col", class: "cost" }, "Costs"),
            h("th", { scope: "col", class: "source" }, "Source"),
          ),
        ),
        h("tbody", {}, remedies.map((remedy) => row(remedy, remedyCode(remedy, framework), excessOf(error)))),
      ),
    ),
  );
}

function row(remedy, code, excess) {
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
    h("td", { class: "number saves" }, saving(remedy, excess)),
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
