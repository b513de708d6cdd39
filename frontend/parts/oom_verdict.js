/** Cause of an out-of-memory error in one sentence, with its key figures; and the choice between several errors. */

import { h } from "vramscope/dom.js";
import { bytes, clock, count, countOf, isKnown, UNKNOWN } from "vramscope/format.js";
import { withCode } from "vramscope/parts/ui.js";

export const CAUSES = {
  weights: "Out of memory: weights",
  optimizer: "Out of memory: optimizer",
  data: "Out of memory: data on the device",
  activations: "Out of memory: activations",
  fragmentation: "Fragmentation",
  leak: "A leak",
  other_process: "Another process uses the device",
  limit: "A memory limit was set",
  outside_pytorch: "Memory outside PyTorch",
};

/** Bar that chooses an error. Null if there is only one. */
export function errorBar(errors, { chosen, several, onChoose }) {
  if (errors.length < 2) return null;
  const label = (error) =>
    [
      isKnown(error.time_seconds) ? clock(error.time_seconds) : "unknown time",
      isKnown(error.step) && `step ${count(error.step + 1)}`,
      several && `rank ${error.rank}`,
      isKnown(error.asked_bytes) && bytes(error.asked_bytes),
      error.survived ? "survived" : error.survived === false ? "ended the run" : null,
      !error.whole && "being received",
    ]
      .filter(Boolean)
      .join(" · ");
  const select = h(
    "select",
    { "aria-label": "Error", onchange: (event) => onChoose(event.target.value) },
    errors.map((error) => h("option", { value: error.record, disabled: !error.whole }, label(error))),
  );
  select.value = chosen;
  const survived = errors.filter((error) => error.survived).length;
  return h(
    "div",
    { class: "view-bar" },
    h("label", {}, h("span", { class: "muted" }, "Error"), select),
    h("span", { class: "muted" }, `${count(errors.length)} in this run, ${count(survived)} of them survived`),
  );
}

/** Heading of the cause. Results that an evaluation collects are intended, so they are not called a leak. */
const headingText = ({ cause, phase }) =>
  cause === "leak" && phase === "eval"
    ? "The evaluation keeps results on the device"
    : (CAUSES[cause] ?? "Unknown cause");

/** Whether the banner says what the other processes did. The table of them does where it does not. */
export const namesOthers = ({ cause, neighbours_words: words }) => cause === "other_process" && Boolean(words);

/** Banner with the cause. */
export function verdict(error) {
  return h(
    "div",
    {
      class: `banner verdict ${error.survived ? "warn" : "bad"}`,
      "data-cause": error.cause ?? "unknown",
      "aria-live": "polite",
    },
    h("strong", {}, `${headingText(error)}.`),
    " ",
    h("span", {}, error.sentence),
    namesOthers(error) && h("span", {}, ` ${error.neighbours_words}`),
    error.survived && h("span", { class: "chip good" }, "the run survived it"),
  );
}

/** Numbers behind the cause. */
export function keyFigures(error) {
  const where = error.culprit.file ? `${error.culprit.file.split("/").at(-1)}:${error.culprit.line}` : null;
  const pieces = error.pieces;
  return h(
    "section",
    { class: "card kpis", "aria-label": "Key figures of the error" },
    cell(
      "asked",
      "Requested",
      bytes(error.message.asked_bytes),
      where ? h("code", { title: `${error.culprit.file}:${error.culprit.line}` }, where) : "source line unknown",
    ),
    cell(
      "free",
      "Free on the device",
      bytes(error.message.free_bytes),
      isKnown(error.message.total_bytes) ? `of ${bytes(error.message.total_bytes)}` : "",
    ),
    cell(
      "room",
      "Available to PyTorch",
      bytes(error.room_bytes),
      isKnown(error.message.limit_bytes)
        ? `limit ${bytes(error.message.limit_bytes)}`
        : "reserved plus free on the device",
    ),
    cell(
      "largest",
      "Largest free block",
      pieces ? bytes(pieces.largest_free_bytes) : UNKNOWN,
      pieces ? `${countOf(pieces.free_pieces, "free block")}: ${bytes(pieces.free_bytes)}` : "memory layout unknown",
    ),
    cell("needed", "Needed in total", neededText(error), error.need_words ?? ""),
    cell(
      "step",
      "When",
      isKnown(error.step) ? `step ${count(error.step + 1)}` : UNKNOWN,
      [error.phase, error.culprit.module ?? error.node].filter(Boolean).join(" · "),
    ),
  );
}

/** Range of memory that the step needs. Unknown if too little of the step had run. */
function neededText({ needed_least_bytes: least, needed_bytes: most }) {
  if (!isKnown(most)) return isKnown(least) ? `at least ${bytes(least)}` : UNKNOWN;
  if (!isKnown(least) || bytes(least) === bytes(most)) return bytes(most);
  const [number, unit] = bytes(least).split(" ");
  return `${bytes(most).endsWith(` ${unit}`) ? number : bytes(least)} to ${bytes(most)}`;
}

function cell(key, label, value, note) {
  return h(
    "div",
    { class: "kpi", "data-kpi": key },
    h("div", { class: "label" }, label),
    h("div", { class: `value${value === UNKNOWN ? " unknown" : ""}` }, value),
    h("div", { class: "note" }, note),
  );
}

/** Whether an out-of-memory error ended the run. Its record may be missing. */
export const endedByOom = ({ error_type: type }) => /OutOfMemoryError$/.test(type ?? "");

/** Banner for runs without a record of an error. */
export function noErrors(run, list) {
  if (list.vanished) {
    return h(
      "div",
      { class: "banner verdict bad", "data-cause": "outside_pytorch" },
      h("strong", {}, "The host's memory."),
      " ",
      h("span", {}, list.vanished.sentence, " ", list.vanished.first_aid),
    );
  }
  const coming = list.errors.some((error) => !error.whole);
  const happened = endedByOom(run)
    ? "The run ended with an out-of-memory error."
    : run.out_of_memory_count > 0 && "Out-of-memory errors were counted.";
  return h(
    "div",
    { class: `banner verdict ${happened ? "warn" : "quiet"}`, "data-cause": happened ? "unknown" : "none" },
    h("strong", {}, coming ? "Receiving a record." : happened || run.state === "failed" ? "No record arrived." : "No out-of-memory error."),
    " ",
    h(
      "span",
      {},
      withCode(
        (coming && "The error is explained here when all of its record has arrived.") ||
        (happened && `${happened} The process may have ended before it sent what it recorded: run \`vramscope sync\` on its machine.`) ||
        {
          running: "An error would be explained here within seconds.",
          failed: "The run failed, and no record of an out-of-memory error came with it.",
          lost: "None arrived before the connection was lost. If the process has ended, run `vramscope sync` on its machine.",
        }[run.state] ||
        "This run did not run out of GPU memory.",
      ),
    ),
  );
}
