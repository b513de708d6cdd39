/** Details of one leak: chain from the root to the tensors, examples, costs, and the fix with its effect. */

import { copyButton, h } from "vramscope/dom.js";
import { bytes, called, count, isKnown, perStep } from "vramscope/format.js";
import { ageOf, OVERLAPS, placeOf, rankWords } from "vramscope/parts/leaks_table.js";
import { known, snippet, withCode } from "vramscope/parts/ui.js";

let replayIsOpen = false; // kept while the detail is drawn again

/** `replay`: answer of `/leaks/LEAK/replay`. Null while it is pending, `{problem}` if it was refused. */
export function leakDetail(leak, { several, replay, run }) {
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  return h(
    "section",
    { class: "card leak-detail", "aria-label": `Detail of ${leak.name}` },
    h("header", {}, h("h2", {}, leak.name), h("span", { class: leak.on_host ? "chip" : "chip leak" }, leak.kind_words)),
    h(
      "div",
      { class: "leak-parts" },
      h(
        "div",
        { class: "pad" },
        h("h3", {}, "Fix"),
        leak.fixed.length > 0 && lineDifference(leak),
        leak.source && !leak.fixed.length && h("pre", { class: "source-line" }, h("code", {}, leak.source.trim())),
        leak.fixed.length ? h("p", {}, withCode(sentence(leak.advice))) : snippet(leak.advice),
        h("p", { class: "effect" }, effectWords(leak)),
        leak.peak_effect &&
          h(
            "p",
            { class: "muted" },
            isKnown(leak.peak_effect_bytes) && [h("span", { class: "chip tag" }, "measured"), " "],
            leak.peak_effect,
          ),
        isOnGpu(leak, replay) && replayed(replay, run, leak.kind),
        h("h3", {}, "Chain of references"),
        chain(leak),
      ),
      h(
        "div",
        { class: "pad" },
        h("h3", {}, "Measured"),
        h(
          "dl",
          { class: "facts" },
          fact("retained", [
            leak.emptied_after !== null && "at most ",
            bytes(leak.held_bytes),
            h(
              "span",
              { class: "muted" },
              leak.exclusive_bytes === leak.held_bytes
                ? " by this holder only"
                : ` · ${bytes(leak.exclusive_bytes)} by this holder only`,
            ),
          ]),
          leak.node_bytes > 0 &&
            fact("autograd nodes", [
              bytes(leak.node_bytes),
              h("span", { class: "muted" }, " of host memory, estimated"),
            ]),
          leak.emptied_after === null && fact("grows by", known(perStep(leak.growth_bytes_per_step, leak.per))),
          leak.emptied && fact("emptied", leak.emptied),
          fact("count", [
            count(leak.count),
            isKnown(leak.age_steps) && h("span", { class: "muted" }, ` · oldest ${ageOf(leak)} ago`),
          ]),
          fact(
            "seen",
            leak.last_step > 0
              ? `first at step ${count(leak.first_step)}, last at step ${count(leak.last_step)}`
              : "before the first step",
          ),
          several && fact("ranks", rankWords(leak.ranks)),
          fact("where", placeLine(leak)),
        ),
        leak.examples.length > 0 && [
          h("h3", {}, "Examples"),
          h(
            "ul",
            { class: "examples" },
            leak.examples.map((example) => h("li", {}, h("code", {}, example))),
          ),
        ],
      ),
    ),
  );
}

/** The source line and what takes its place, as a diff. Copies the new lines. */
function lineDifference({ source, fixed, file, line }) {
  const mark = (kind, sign, text) => h("span", { class: `diff-line ${kind}` }, h("i", {}, sign), text);
  return h(
    "div",
    { class: "source-diff" },
    h("div", { class: "source-head" }, h("code", {}, `${file.split("/").at(-1)}:${line}`)),
    h(
      "pre",
      {},
      h(
        "code",
        {},
        mark("old", "−", source),
        fixed.map((text) => mark("new", "+", text)),
      ),
    ),
    copyButton("Copy", () => fixed.join("\n"), { title: "the new lines" }),
  );
}

const sentence = (text) => (/^[a-z]+ /.test(text) ? `${text[0].toUpperCase()}${text.slice(1)}.` : `${text}.`);

/** Retained bytes, and effect on the peak. The two differ. */
function effectWords(leak) {
  if (leak.on_host) return "It is host memory. Device memory is not affected.";
  if (!isKnown(leak.peak_effect_bytes)) return ["Effect on the peak: ", known("unknown"), "."];
  if (leak.peak_effect_bytes === 0) return "Freeing it does not lower the peak.";
  const when = OVERLAPS.has(leak.kind) ? " at the end of its step" : "";
  return [
    `Freeing it${when} lowers the peak by `,
    h("strong", {}, bytes(leak.peak_effect_bytes)),
    ".",
  ];
}

/** The recorded step before and after the fix, folded: its peak is one of many, the effect above is that of the run. */
const replayed = (replay, run, kind) =>
  h(
    "details",
    { class: "replay", open: replayIsOpen, ontoggle: (event) => (replayIsOpen = event.target.open) },
    h("summary", {}, "The fix in a recorded step, by replay"),
    h("div", { "aria-live": "polite" }, replayResult(replay, run, kind)),
  );

/** False for tensors on the CPU, which have no device peak and no recorded step. */
const isOnGpu = (leak, replay) =>
  Boolean(replay?.effect) || !leak.examples.length || !leak.examples.every((example) => example.endsWith(" on cpu"));

/** Peaks of the recorded step before and after the fix, by replay. */
function replayResult(replay, run, kind) {
  const when = OVERLAPS.has(kind) ? "Freed after its last use within the step: " : "";
  const head = [h("span", { class: "chip tag" }, "by replay"), ` ${when}`];
  if (!replay) return h("p", { class: "muted" }, head, "replaying the recorded step…");
  const { effect, recording } = replay;
  if (!effect) return h("p", { class: "muted" }, head, "unknown: ", replay.problem ?? replay.reason, ".");
  const [low, high] = effect.peak_reserved_after_band;
  const row = (name, before, after, band) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      h("td", { class: "number tabular" }, bytes(before)),
      h("td", { class: "number tabular" }, bytes(after), band && h("span", { class: "below" }, band)),
    );
  return [
    h(
      "p",
      {},
      head,
      effect.words,
      " ",
      h(
        "a",
        { href: `/runs/${encodeURIComponent(run)}/anatomy?recording=${encodeURIComponent(recording)}` },
        "the recording",
      ),
    ),
    h(
      "table",
      { class: "plain" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", {}, `step ${count(effect.step)}`),
          h("th", { class: "number" }, "before the fix"),
          h("th", { class: "number" }, "after the fix"),
        ),
      ),
      h(
        "tbody",
        {},
        row("peak allocated", effect.peak_allocated_bytes, effect.peak_allocated_after_bytes),
        row(
          "peak reserved",
          effect.peak_reserved_bytes,
          effect.peak_reserved_after_bytes,
          low !== high && `${bytes(low)} to ${bytes(high)}`,
        ),
      ),
    ),
  ];
}

function chain(leak) {
  const links = leak.chain.length ? leak.chain : [leak.holder];
  return h(
    "ol",
    { class: "chain" },
    links.map((link, depth) => h("li", { style: { "--depth": String(Math.min(depth, 7)) } }, h("code", {}, link))),
  );
}

function placeLine(leak) {
  const short = placeOf(leak);
  if (!short) return known("unknown");
  const full = leak.line ? `${leak.file}:${leak.line}` : leak.file;
  return [
    h("code", {}, full),
    leak.function && h("span", { class: "muted" }, ` in ${called(leak.function)}`),
    " ",
    copyButton("Copy", () => full),
  ];
}
