/** Details of one allocation of a recording: size, lifetime, use, and the stacks that allocated and freed it. */

import { fill, h } from "vramscope/dom.js";
import { bytes, categoryName, count, isKnown, seconds } from "vramscope/format.js";
import { sized } from "vramscope/parts/ui.js";
import { eventText } from "vramscope/parts/timeline.js";

/** Draws a stack, innermost frame first. Frames of libraries are shown on demand. */
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

function noStackReason({ born, stacks_from: from }) {
  if (from === null) return "Unknown: no stacks were recorded.";
  if (!born) return "Unknown: allocated before the recording.";
  if (born.event < from) return `Unknown: stacks are recorded from event ${count(from)} on.`;
  return born.phase === "backward"
    ? "No Python frame: allocated by an autograd thread."
    : "Unknown: no stack was recorded.";
}

/** Reason why the stack that freed an allocation is unknown. */
function noFreeStackReason({ freed, frees_told: hasFreeStacks }) {
  if (!freed) return "Not freed in this recording.";
  if (hasFreeStacks) return "No Python frame: freed by an autograd thread.";
  return "Unknown: no stacks of frees were recorded. “Record a window” records them in a live run.";
}

export class Allocation {
  /** load(part, parameters, signal); onEvent(event) shows an event; onClose(). */
  constructor({ load, onEvent, onClose }) {
    Object.assign(this, { load, onEvent, onClose });
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
    this.request?.abort();
  }

  /** Shows an allocation by its number. Null: none. */
  async show(allocation) {
    if (allocation === this.shown) return;
    this.shown = allocation;
    this.request?.abort();
    this.element.hidden = allocation === null;
    if (allocation === null) return;
    const request = (this.request = new AbortController());
    try {
      const life = await this.load("life", { allocation }, request.signal);
      if (this.request === request) this.draw(life);
    } catch (problem) {
      if (problem.name !== "AbortError") fill(this.body, h("p", { class: "muted" }, problem.message));
    }
  }

  draw(life) {
    const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, value)];
    const at = (point, otherwise) =>
      point
        ? [h("button", { class: "link", type: "button", onclick: () => this.onEvent(point.event) }, eventText(point))]
        : h("span", { class: "muted" }, otherwise);
    const rounding = isKnown(life.requested_bytes) ? life.size_bytes - life.requested_bytes : null;
    const pool = [
      life.private_pool ? `private pool ${life.private_pool.join(".")}` : "default pool",
      life.stream ? `stream ${life.stream}` : "default stream",
    ].join(", ");
    fill(
      this.body,
      h(
        "p",
        { class: "headline" },
        h("strong", {}, bytes(life.size_bytes)),
        ` ${life.category === "unknown" ? "of unknown use" : categoryName(life.category)}`,
        life.owner ? [": ", h("span", { "data-owner": true }, life.owner)] : null,
      ),
      h(
        "dl",
        { class: "facts" },
        fact(
          "requested",
          sized(life.requested_bytes),
          rounding > 0 && h("span", { class: "muted" }, ` plus ${bytes(rounding)} rounding`),
        ),
        fact("allocated", at(life.born, "before the recording")),
        fact("freed", at(life.freed, "not in this recording")),
        isKnown(life.events) &&
          fact("lifetime", `${count(life.events)} events`, isKnown(life.seconds) && `, ${seconds(life.seconds)}`),
        life.freed &&
          life.usable_event !== life.freed.event + 1 &&
          fact(
            "usable again",
            life.usable_event === null
              ? "not in this recording: another stream still used it"
              : `after event ${count(life.usable_event)}`,
          ),
        life.born?.module && fact("module", h("code", {}, life.born.module)),
        life.ranges.length > 0 &&
          fact(
            "within",
            life.ranges.map((name, at) => [at > 0 && " › ", h("code", {}, name)]),
          ),
        life.compile_context && fact("compiled region", h("code", {}, life.compile_context)),
        life.user_metadata && fact("metadata", h("code", {}, life.user_metadata)),
        fact(
          "place",
          h("code", {}, `0x${BigInt(life.address).toString(16)}`),
          h("span", { class: "muted" }, ` ${pool}`),
        ),
      ),
      h("h4", {}, "Allocated by"),
      life.stack.length > 0 ? stackList(life.stack) : h("p", { class: "muted" }, noStackReason(life)),
      life.forward_stack.length > 0 && [h("h4", {}, "Forward"), stackList(life.forward_stack)],
      h("h4", {}, "Freed by"),
      life.freed_by.length > 0 ? stackList(life.freed_by) : h("p", { class: "muted" }, noFreeStackReason(life)),
    );
  }
}
