/** A window of a recording's events, in the URL as `from` and `to`: chosen in a chart or in the mini-map, moved, followed. */

import { count } from "vramscope/format.js";
import { MiniMap } from "vramscope/parts/mini_map.js";
import { stepTicks } from "vramscope/series.js";

/** No window: all events. */
export const ALL = { from: null, to: null };

/** A whole number of the URL; null where it says none. */
export const integerOf = (text) => (/^-?\d{1,16}$/.test(text ?? "") ? Number(text) : null);

/** The window that the URL tells; ALL where that is none. */
export function windowIn({ from: first, to: end }) {
  const [from, to] = [integerOf(first), integerOf(end)];
  return from !== null && to !== null && from < to ? { from: Math.max(-1, from), to } : ALL;
}

/** What was drawn in a chart ({from, to} in units of its axis, null: all), as whole events of so many. */
export function windowOf(range, events) {
  if (!range) return ALL;
  const from = Math.max(-1, Math.floor(range.from));
  const to = Math.min(events, Math.max(from + 2, Math.ceil(range.to)));
  return from <= -1 && to >= events ? ALL : { from, to };
}

/** A window moved by so much of itself to the right (or, below 0, to the left), as far as there are events. */
export function shiftedWindow({ from, to, events }, by) {
  const wide = to - from;
  const begin = Math.max(-1, Math.min(events - wide, from + Math.round(by * wide)));
  return { from: begin, to: begin + wide };
}

/** The window that has an event in sight: itself, or as much around the event. */
export function windowAround({ from, to }, event) {
  if (from === null || (event >= from && event < to)) return {};
  const begin = Math.max(-1, Math.round(event - (to - from) / 2));
  return { from: begin, to: begin + to - from };
}

/** The whole recording, small, with the window under a brush. */
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

/** Draw it: `outline` is {event, reserved_bytes} and what of that is used, `window` null or {from, to}. */
export function drawEventsMap(map, { event, used, reserved }, events, window) {
  map.setRows(
    { x_values: event, series: { allocated_bytes: { value: used }, reserved_bytes: { value: reserved } } },
    0,
    [-1, events],
  );
  map.show(window.from === null ? null : window);
}
