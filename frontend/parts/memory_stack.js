/**
 * Memory of the device over time as one stack: the card, reserved memory, and what is allocated. Levels fold and unfold
 * in the legend, the choice stays in this browser, and the peak is pinned.
 */

import { chart } from "vramscope/chart.js";
import { drawLevels } from "vramscope/charts/levels.js";
import { h, setText } from "vramscope/dom.js";
import { bytes, count } from "vramscope/format.js";

const KEPT = "vramscope.run.stack.folded";
/** Levels from the outside in. A level is a part of the one before. */
const LEVELS = ["card", "reserved", "allocated"];
const ROOM = 8; // pixels between the line of the peak, its words, and the end of the plot

/** Folded levels that this browser keeps. None if there are none, or if the storage is blocked or spoilt. */
function kept() {
  try {
    const levels = JSON.parse(localStorage.getItem(KEPT) ?? "[]");
    return new Set(LEVELS.filter((level) => levels.includes(level)));
  } catch {
    return new Set();
  }
}

function keep(folded) {
  try {
    localStorage.setItem(KEPT, JSON.stringify([...folded]));
  } catch {
    // the choice holds until the page is left
  }
}

/** Creates the chart. `options`: those of chart(). */
export function memoryStack(options) {
  const folded = kept();
  const isOpen = (level) => !folded.has(level);
  const pin = h("div", { class: "peak-mark", hidden: true });
  const words = h("span", { class: "peak-words" });
  pin.append(words);
  const element = chart({
    ...options,
    describe,
    mark: ({ figure }) => figure.layout.meta.peak?.x,
    onDrawn: () => placePin(element, pin, words),
    isFolded: ({ meta }) => Boolean(meta.level) && !isDrawn(meta, isOpen),
    legend: (drawn, colors) => drawLevels(drawn, colors, { isOpen, toggle }),
  });
  function toggle(level) {
    if (!folded.delete(level)) folded.add(level);
    keep(folded);
    element.redraw();
  }
  element.plot.parentElement.append(pin);
  element.classList.add("stack");
  return element;
}

/** Whether a part is drawn: all levels outside its own are open, and its own is as the part needs it. */
function isDrawn({ level, shown }, isOpen) {
  const outside = LEVELS.slice(0, LEVELS.indexOf(level));
  return outside.every(isOpen) && isOpen(level) === (shown === "open");
}

/** Words for a peak: "peak 31.2 GiB · step 309". Of an unfinished step only samples are known: its peak may be higher. */
function peakWords({ bytes: size, step, first_step: first, finished, lower_bound: bound }, { from, last }) {
  const name = (from ?? null) !== null || last ? "peak in view" : "peak";
  const steps = first < step ? `steps ${count(first)} to ${count(step)}` : `step ${count(step)}`;
  const where = step === null ? "" : ` · ${finished ? "" : "unfinished "}${steps}`;
  return `${name} ${bound || !finished ? "≥ " : ""}${bytes(size)}${where}`;
}

/** Moves the mark to the peak of the window. */
function placePin(element, pin, words) {
  const { peak } = element.figure.layout.meta;
  const { xaxis, yaxis, _size: size } = element.plot._fullLayout ?? {};
  const left = peak && size ? xaxis.d2p(peak.x) : -1;
  pin.hidden = !(left >= 0 && left <= size.w);
  if (pin.hidden) return;
  const divisor = element.traces.find((trace) => trace.meta.level)?.meta.divisor ?? 1;
  setText(words, peakWords(peak, element.options.view()));
  pin.title = `${count(peak.bytes)} bytes allocated`;
  pin.style.transform = `translate(${size.l + left}px, ${size.t}px)`; // moved in this way, it is no layout shift
  pin.style.height = `${size.h}px`;
  pin.style.setProperty("--at", `${yaxis.d2p(peak.bytes / divisor)}px`);
  pin.classList.toggle("leftwards", left + words.offsetWidth + ROOM > size.w);
}

/** Sentence for screen readers: the peak and its parts. */
function describe({ figure, traces, options }) {
  const { peak, levels } = figure.layout.meta;
  if (!peak) return `${options.title}: nothing recorded yet.`;
  const parts = traces
    .filter(({ meta }) => meta.shown === "open" && meta.numbers?.peak)
    .map(({ meta }) => `${meta.label} ${bytes(meta.numbers.peak)}`);
  const reserved = levels.reserved.peak === null ? "" : `, reserved ${bytes(levels.reserved.peak)}`;
  return `${options.title}: ${peakWords(peak, options.view())}${reserved}; ${parts.join(", ")}.`;
}
