/** One allocation of a recording: how large, from when to when, for what, who asked for it and who let go of it. */

import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown, seconds } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";
import { momentWords } from "vramscope/parts/timeline.js";

/** A stack, innermost first; frames of libraries are quiet, and shown when asked for. */
export function stackList(stack) {
  const own = stack.filter((frame) => !frame.library);
  const place = (frame) =>
    frame.line === 0 ? "C++" : `${frame.file.replaceAll("\\", "/").split("/").slice(-2).join("/")}:${frame.line}`;
  const item = (frame) =>
    h(
      "li",
      { class: frame.library ? "muted" : null },
      h("code", {}, frame.function),
      " ",
      h("span", { class: "muted", title: frame.file }, place(frame)),
    );
  const list = (frames) => h("ol", { class: "stack" }, frames.map(item));
  if (own.length === 0 || own.length === stack.length) return list(stack);
  return [
    list([...(stack[0].library ? [stack[0]] : []), ...own]),
    h(
      "details",
      { class: "all-frames" },
      h("summary", { class: "muted" }, `all ${count(stack.length)} frames, libraries' included`),
      list(stack),
    ),
  ];
}

function noStack({ born, stacks_from: from }) {
  if (from === null) return "Unknown: no stacks were recorded.";
  if (!born) return "Unknown: allocated before the recording.";
  if (born.event < from) return `Unknown: stacks are recorded from event ${count(from)} on.`;
  return born.phase === "backward"
    ? "No Python frame: allocated by an autograd thread."
    : "Unknown: no stack was recorded.";
}

/** Why nothing is known of who let go. */
function noEnd({ freed, frees_told: told }) {
  if (!freed) return "Not freed in this recording.";
  if (told) return "No Python frame: freed by an autograd thread.";
  return "Unknown: no stacks of frees were recorded. “Record a window” records them in a live run.";
}

export class Allocation {
  /** load(part, parameters, signal); onMoment(event): the reader wants to see that moment; onClose(). */
  constructor({ load, onMoment, onClose }) {
    Object.assign(this, { load, onMoment, onClose });
    this.body = h("div", { class: "pad" });
    this.element = h(
      "section",
      { class: "card allocation", "aria-label": "One allocation", hidden: true },
      h(
        "header",
        {},
        h("h3", {}, "Allocation"),
        h("span", { class: "spring" }),
        h("button", { class: "button small quiet", type: "button", onclick: onClose }, "Close"),
      ),
      this.body,
    );
  }

  close() {
    this.asking?.abort();
  }

  /** Show one by its number; null: none. */
  async show(allocation) {
    if (allocation === this.shown) return;
    this.shown = allocation;
    this.asking?.abort();
    this.element.hidden = allocation === null;
    if (allocation === null) return;
    const asking = (this.asking = new AbortController());
    try {
      const told = await this.load("life", { allocation }, asking.signal);
      if (this.asking === asking) this.draw(told);
    } catch (problem) {
      if (problem.name !== "AbortError") fill(this.body, h("p", { class: "muted" }, problem.message));
    }
  }

  draw(told) {
    const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];
    const at = (moment, otherwise) =>
      moment
        ? [
            h(
              "button",
              { class: "link", type: "button", onclick: () => this.onMoment(moment.event) },
              momentWords(moment),
            ),
          ]
        : h("span", { class: "muted" }, otherwise);
    const rounding = isKnown(told.requested_bytes) ? told.size_bytes - told.requested_bytes : null;
    const pool = [
      told.private_pool ? `private pool ${told.private_pool.join(".")}` : "default pool",
      told.stream ? `stream ${told.stream}` : "default stream",
    ].join(", ");
    fill(
      this.body,
      h(
        "p",
        { class: "headline" },
        h("strong", {}, bytes(told.size_bytes)),
        ` ${told.category === "unknown" ? "of unknown use" : told.category}`,
        told.owner ? [": ", h("span", { "data-owner": true }, told.owner)] : null,
      ),
      h(
        "dl",
        { class: "facts" },
        fact(
          "asked for",
          known(bytes(told.requested_bytes)),
          rounding > 0 && h("span", { class: "muted" }, ` plus ${bytes(rounding)} rounding`),
        ),
        fact("born", at(told.born, "before the recording")),
        fact("let go", at(told.freed, "not in this recording")),
        isKnown(told.events) &&
          fact("lived", `${count(told.events)} events`, isKnown(told.seconds) && `, ${seconds(told.seconds)}`),
        told.freed &&
          told.usable_event !== told.freed.event + 1 &&
          fact(
            "usable again",
            told.usable_event === null
              ? "not in this recording: another stream still used it"
              : `after event ${count(told.usable_event)}`,
          ),
        told.born?.module && fact("module", h("code", {}, told.born.module)),
        told.ranges.length > 0 &&
          fact(
            "within",
            told.ranges.map((name, at) => [at > 0 && " › ", h("code", {}, name)]),
          ),
        told.compile_context && fact("compiled region", h("code", {}, told.compile_context)),
        told.user_metadata && fact("metadata", h("code", {}, told.user_metadata)),
        fact(
          "place",
          h("code", {}, `0x${BigInt(told.address).toString(16)}`),
          h("span", { class: "muted" }, ` ${pool}`),
        ),
      ),
      h("h4", {}, "Allocated by"),
      told.stack.length > 0 ? stackList(told.stack) : h("p", { class: "muted" }, noStack(told)),
      told.forward_stack.length > 0 && [h("h4", {}, "Forward"), stackList(told.forward_stack)],
      h("h4", {}, "Freed by"),
      told.freed_by.length > 0 ? stackList(told.freed_by) : h("p", { class: "muted" }, noEnd(told)),
    );
  }
}
