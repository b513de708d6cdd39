/** View of a run, kept in the URL: rank and device, window, axis. */

import { anything, isNumber, oneOf } from "vramscope/parts/address.js";
import { h } from "vramscope/dom.js";
import { axisTime, count } from "vramscope/format.js";
import { clockTicks } from "vramscope/series.js";
import { setQuery, store } from "vramscope/store.js";

/** Parameters that the URL may have; `readView` reads them. For an unknown rank, the page says which rank it shows. */
export const ADDRESS = {
  x: oneOf("time", "step", "clock"),
  from: isNumber,
  to: isNumber,
  last: isNumber,
  rank: anything,
  device: anything,
  smooth: oneOf("1"),
  loss: oneOf("log", "linear"),
};

const numberOf = (text) => (text !== undefined && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);

/** Ranks and devices of a full run, in order: [{rank, device, name, total}]. Never empty. */
export function placesOf(run) {
  const places = run.ranks.flatMap((rank) =>
    rank.devices.map((device) => ({
      rank: rank.rank,
      device: device.index,
      name: device.name,
      total: device.total_bytes,
      emulated: device.emulated,
    })),
  );
  return places.length ? places : [{ rank: run.ranks[0]?.rank ?? 0, device: -1, name: null, total: null }];
}

/** Whether a rank reports the CPU as its device. Before any device is known, a run may still get a GPU. */
export const isOnCpu = (place) => place.device < 0 && place.name !== null;

/** Window of the URL. Both null if it is none. */
export function readWindow({ from, to }) {
  const [first, end] = [numberOf(from), numberOf(to)];
  return first !== null && end !== null && end <= first ? [null, null] : [first, end];
}

/**
 * View of the URL. `from` and `to` are in units of the axis: steps, or seconds since the start (also if `clock` shows
 * them as times of day). Without a rank in the URL, `rankOfPeak` is shown, or the first one.
 */
export function readView(places, rankOfPeak = null) {
  const { x, last, rank, device, smooth, loss, ...query } = store.get().query;
  const [from, to] = readWindow(query);
  const wanted = places.find(
    (place) => place.rank === numberOf(rank) && (numberOf(device) === null || place.device === numberOf(device)),
  );
  const ofPeak = rank === undefined ? places.find((place) => place.rank === rankOfPeak) : undefined;
  const place = wanted ?? ofPeak ?? places[0];
  const missingPlace =
    rank !== undefined && !wanted ? `rank ${rank}${device === undefined ? "" : `, device ${device}`}` : null;
  return {
    x: x === "step" ? "step" : "time",
    clock: x === "clock",
    smooth: smooth === "1",
    loss,
    from,
    to,
    last: numberOf(last),
    rank: place.rank,
    device: place.device,
    missingPlace,
  };
}

const deviceWords = (device) => (device < 0 ? "CPU" : `GPU ${device}`);

/** Choice of rank and device. For a single one: its name, or null if `quiet`. */
export function placeChoice(places, { rank, device }, { label = "Showing", quiet = false } = {}) {
  if (places.length < 2) return quiet ? null : h("span", { class: "muted" }, `rank ${rank} · ${deviceWords(device)}`);
  const choose = (event) => {
    const [newRank, newDevice] = event.target.value.split("/");
    setQuery({ rank: newRank, device: newDevice });
  };
  const select = h(
    "select",
    { "aria-label": "Rank and device", onchange: choose },
    places.map((place) =>
      h("option", { value: `${place.rank}/${place.device}` }, `rank ${place.rank} · ${deviceWords(place.device)}`),
    ),
  );
  select.value = `${rank}/${device}`;
  return h("label", {}, label, select);
}

/** Bar above the charts of a run. */
export function viewBar(view, places, { onAll, onAxis, words }) {
  const { x, clock, smooth, from, last } = view;
  const press = (label, on, action, title) =>
    h("button", { type: "button", "aria-pressed": String(on), onclick: action, title: title ?? null }, label);
  const spans =
    x === "time"
      ? [
          [60, "1 min"],
          [600, "10 min"],
          [3600, "1 h"],
        ]
      : [
          [50, "50 steps"],
          [500, "500 steps"],
        ];
  return [
    placeChoice(places, view),
    h("span", { class: "spring" }),
    from !== null &&
      h(
        "button",
        { class: "chip zoom-chip", type: "button", onclick: onAll, title: "reset the zoom (Esc)" },
        `${x === "time" ? "" : "steps "}${words(from)} – ${words(view.to)}  ✕`,
      ),
    h(
      "div",
      { class: "segmented", role: "group", "aria-label": "Window" },
      press("All", from === null && !last, () => setQuery({ from: null, to: null, last: null }), "the whole run (f)"),
      spans.map(([size, label]) =>
        press(`Last ${label}`, from === null && last === size, () => setQuery({ from: null, to: null, last: size })),
      ),
    ),
    h(
      "div",
      { class: "segmented", role: "group", "aria-label": "Lines" },
      press(
        "Smooth lines",
        smooth,
        () => setQuery({ smooth: smooth ? null : 1 }),
        "means over 2 % of the window, measured lines behind; peaks unchanged (s)",
      ),
    ),
    h(
      "div",
      { class: "segmented", role: "group", "aria-label": "Axis" },
      press("Time", x === "time" && !clock, () => onAxis("time"), "x axis: time since the start (x)"),
      press("Clock", clock, () => onAxis("clock"), "x axis: time of day (x)"),
      press("Steps", x === "step", () => onAxis("step"), "x axis: steps (x)"),
    ),
  ];
}

/** Position on the axis of a view, in words. `zero`: start of the run. */
export function placeInWords({ x, clock, from, to }, zero, value) {
  if (x === "step") return count(value);
  const step = from !== null && to - from <= 30 ? 0.1 : 1;
  if (!clock) return axisTime(value, step);
  const { texts } = clockTicks(value, value, zero);
  return texts[0];
}
