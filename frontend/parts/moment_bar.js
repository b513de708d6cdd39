/** Key figures of a recording, and the bar that chooses one of its events. */

import { h, setText } from "vramscope/dom.js";
import { bytes, count, isKnown, percent } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";

const cell = (name, label, value, note) =>
  h(
    "div",
    { class: "kpi", "data-kpi": name },
    h("span", { class: "label" }, label),
    h("span", { class: "value" }, value === "…" ? value : known(value)),
    h("span", { class: "note" }, note),
  );

/** Sentence on the free memory at the peak. `peak`: parts of reserved memory at the peak, null if not known yet. */
export const peakVerdict = (peak) => (peak ? peak.reserved_bytes > 0 && freeVerdict(peak) : verdictToCome());

/**
 * Key figures. `moments`: answer of `/moments`. `peak`: parts of reserved memory at the peak, null if not known yet.
 * `ends`: parts at each out-of-memory error.
 */
export function figuresOf(moments, peak, ends) {
  const free = peak && peak.usable_bytes + peak.unusable_bytes;
  const of = (part) => (peak && peak.reserved_bytes > 0 ? `${percent(part / peak.reserved_bytes)} of reserved` : "");
  return [
    h(
      "section",
      { class: "card kpis", "aria-label": "Key figures of the recording" },
      cell(
        "reserved",
        "Peak reserved",
        bytes(moments.peak_reserved_bytes),
        isKnown(moments.device_total_bytes) ? `of ${bytes(moments.device_total_bytes)}` : "capacity unknown",
      ),
      cell(
        "requested",
        "Requested",
        peak ? bytes(peak.requested_bytes) : "…",
        peak ? `plus ${bytes(peak.rounding_bytes)} rounding` : "",
      ),
      cell("free", "Free", peak ? bytes(free) : "…", peak ? of(free) : ""),
      cell("unusable", "Unusable", peak ? bytes(peak.unusable_bytes) : "…", peak ? of(peak.unusable_bytes) : ""),
      cell(
        "oom",
        "Out of memory",
        moments.out_of_memory_events.length === 0 ? "never" : count(moments.out_of_memory_events.length),
        "in this recording",
      ),
      cell(
        "settings",
        "Allocator settings",
        h("code", {}, moments.settings || "default settings"),
        `PyTorch ${moments.torch}`,
      ),
    ),
    ends.length > 0 && oomFigures(ends.at(-1), ends.length),
    notes(moments),
  ];
}

/** Parts of reserved memory at the last out-of-memory error. */
function oomFigures(end, times) {
  const of = (part) => (end.reserved_bytes > 0 ? `${percent(part / end.reserved_bytes)} of reserved` : "");
  return h(
    "section",
    { class: "card kpis", "aria-label": "Out of memory" },
    cell(
      "oom-asked",
      times > 1 ? "Last failed request" : "Failed request",
      bytes(end.asked_bytes),
      `event ${count(end.event)}`,
    ),
    cell("oom-reserved", "Reserved", bytes(end.reserved_bytes), "after cached memory was released"),
    cell("oom-requested", "Requested", bytes(end.requested_bytes), `plus ${bytes(end.rounding_bytes)} rounding`),
    cell("oom-usable", "Free", bytes(end.usable_bytes), of(end.usable_bytes)),
    cell("oom-unusable", "Unusable", bytes(end.unusable_bytes), of(end.unusable_bytes)),
  );
}

const [LITTLE, MUCH] = [0.05, 0.15]; // shares of reserved memory

/** Verdict on the share of reserved memory that is free. */
function freeVerdict({ usable_bytes: usable, unusable_bytes: unusable, reserved_bytes: reserved }) {
  const free = usable + unusable;
  const share = free / reserved;
  const [level, head] =
    share < LITTLE
      ? ["good", "Hardly fragmented."]
      : share < MUCH
        ? ["quiet", "Somewhat fragmented."]
        : ["warn", "Fragmented."];
  return h(
    "div",
    { class: `banner verdict ${level}`, "data-verdict": true },
    h("strong", {}, head),
    h(
      "span",
      {},
      `At peak reserved, ${bytes(free)} of ${bytes(reserved)} (${percent(share)}) were free, of which ${bytes(unusable)} unusable.`,
    ),
  );
}

/** Keeps the space of the verdict, so that the charts below do not move when it arrives. */
const verdictToCome = () =>
  h("div", { class: "banner verdict quiet", "aria-busy": "true" }, h("span", { class: "muted" }, "Free memory at peak reserved: …"));

function notes(moments) {
  const { lost_events: lost } = moments;
  const lines = [...moments.notes];
  if (lost > 0)
    lines.unshift(`${count(lost)} ${lost === 1 ? "event was" : "events were"} lost. Values are not exact.`);
  return [
    lines.length > 0 &&
      h(
        "div",
        { class: "banner warn", "data-notes": true },
        h("strong", {}, "Incomplete."),
        h("span", {}, lines.join(" ")),
      ),
    lost === null && h("p", { class: "muted lost-events" }, "Whether events are missing from the file is unknown."),
  ];
}

/** Creates the bar with the slider, buttons for notable events, and play: `{element, draw({event, playing})}`. */
export function momentBar(moments, { onEvent, onPlay }) {
  const slider = h("input", {
    type: "range",
    min: "-1",
    max: String(moments.events - 1),
    step: "1",
    "aria-label": "Event",
    oninput: (event) => onEvent(Number(event.target.value)),
  });
  const words = h("span", { class: "tabular moment-words", "aria-live": "off" });
  const play = h(
    "button",
    { class: "button small", type: "button", onclick: onPlay, title: "play the recording from here" },
    "Play",
  );
  const to = (label, event, title) =>
    h(
      "button",
      { class: "button small quiet", type: "button", title, "data-event": event, onclick: () => onEvent(event) },
      label,
    );
  const element = h(
    "div",
    { class: "view-bar moment-bar" },
    h("span", { class: "muted" }, "Moment"),
    to("start", -1, "before the first event"),
    moments.growth_event >= 0 &&
      to("last growth", moments.growth_event, "peak reserved: free memory did not fit this request"),
    to("peak", moments.peak_event, "peak reserved"),
    moments.out_of_memory_events.slice(0, 3).map((event) => to("out of memory", event, `event ${count(event)}`)),
    to("end", moments.events - 1, "after the last event"),
    slider,
    words,
    play,
  );
  return {
    element,
    draw({ event, playing }) {
      if (Number(slider.value) !== event) slider.value = String(event);
      const step = moments.steps.findLast((start) => start.event <= event)?.step;
      const place =
        event < 0
          ? "the start"
          : `event ${count(event)}${isKnown(step) ? ` · step ${count(step)}` : ""}`;
      setText(words, place);
      slider.setAttribute("aria-valuetext", place);
      setText(play, playing ? "Stop" : "Play");
      for (const button of element.querySelectorAll("[data-event]"))
        button.setAttribute("aria-pressed", String(Number(button.dataset.event) === event));
    },
  };
}
