/** Window of a recording's events, in the URL as `from` and `to`. */

import { count } from "vramscope/format.js";
import { MiniMap } from "vramscope/parts/mini_map.js";
import { stepTicks } from "vramscope/series.js";

const LEAST_EVENTS = 8; // a closer look shows no more

/** No window: all events. */
export const ALL = { from: null, to: null };

/** Integer of the URL. Null if it is none. */
export const integerOf = (text) => (/^-?\d{1,16}$/.test(text ?? "") ? Number(text) : null);

/** Window of the URL. ALL if it has none. */
export function windowIn({ from: first, to: end }) {
  const [from, to] = [integerOf(first), integerOf(end)];
  return from !== null && to !== null && from < to ? { from: Math.max(-1, from), to } : ALL;
}

/** Converts a range of a chart ({from, to} in axis units, null: all) to a window of whole events. */
export function windowOf(range, events) {
  if (!range) return ALL;
  const from = Math.max(-1, Math.floor(range.from));
  const to = Math.min(events, Math.max(from + 2, Math.ceil(range.to)));
  return from <= -1 && to >= events ? ALL : { from, to };
}

/** Window moved by a share of its width: to the right, or to the left if negative. Stays within the events. */
export function shiftedWindow({ from, to, events }, by) {
  const wide = to - from;
  const begin = Math.max(-1, Math.min(events - wide, from + Math.sign(by) * Math.round(Math.abs(by) * wide)));
  return { from: begin, to: begin + wide };
}

/** Window whose width is a multiple of the old one, around an event (null: its middle). ALL if it has all events. */
export function scaledWindow({ from, to, events }, factor, event = null) {
  const wide = Math.max(LEAST_EVENTS, Math.round((to - from) * factor));
  if (wide >= events + 1) return ALL;
  const middle = event ?? (from + to) / 2;
  const share = Math.min(1, Math.max(0, (middle - from) / (to - from)));
  const begin = Math.max(-1, Math.min(events - wide, Math.round(middle - share * wide)));
  return { from: begin, to: begin + wide };
}

/** Patch that brings an event into the window: none if it is inside, else a window of the same width around it. */
export function windowAround({ from, to }, event) {
  if (from === null || (event >= from && event < to)) return {};
  const begin = Math.max(-1, Math.round(event - (to - from) / 2));
  return { from: begin, to: begin + to - from };
}

/** Mini-map of a recording, with a brush for the window. */
export function eventsMap(onWindow) {
  const map = new MiniMap({
    label: "The whole recording",
    onWindow,
    words: (event) => `event ${count(Math.max(0, Math.round(event)))}`,
    ticks: (from, to, most) => {
      const values = stepTicks(Math.max(0, from), to, most);
      return { values, texts: values.map((value) => count(value)) };
    },
  });
  map.element.classList.remove("card");
  return map;
}

/** Draws the mini-map. The outline has used and reserved bytes by event. `window`: ALL or {from, to}. */
export function drawEventsMap(map, { event, used, reserved }, events, window) {
  const ends = [...event.slice(1), events];
  const inSteps = (values) => values.flatMap((value) => [value, value]);
  map.setRows(
    {
      x_values: event.flatMap((at, i) => [at, ends[i]]), // what an event leaves lasts until the next one
      series: { allocated_bytes: { value: inSteps(used) }, reserved_bytes: { value: inSteps(reserved) } },
    },
    0,
    [-1, events],
  );
  map.show(window.from === null ? null : window);
}
