/** First picture of a snapshot file, while the server computes lifetimes: memory over the events, at a coarse resolution. */

import { h, svg } from "vramscope/dom.js";
import { bytes, count } from "vramscope/format.js";
import { envelopePath, highest } from "vramscope/series.js";

const [WIDTH, HEIGHT] = [1000, 200];
const NAMES = { reserved_bytes: "Reserved", requested_bytes: "Requested" };

/** Picture of one device. `curve`: entry of `curves` of an answer of `/snapshots`. `isAlone`: the file has no other device. */
export function coarseCurve(curve, isAlone) {
  const names = Object.keys(NAMES).filter((name) => curve[name]);
  const peaks = names.map((name) => highest(curve[name]));
  const top = highest(peaks) ?? 0;
  // each stretch ends where the next one begins
  const x = curve.event.flatMap((event, at) => [event, curve.event[at + 1] ?? curve.events]);
  const path = (name) =>
    svg("path", {
      class: name,
      d: envelopePath(
        x,
        null,
        curve[name].flatMap((value) => [value, value]),
        [0, curve.events],
        top,
        WIDTH,
        HEIGHT,
      ),
    });
  const words = names.map((name, at) => `${NAMES[name]}: at most ${bytes(peaks[at])}`);
  return h(
    "figure",
    { class: "card pad coarse-curve", "data-coarse-curve": String(curve.device) },
    h("h2", {}, isAlone ? "Memory over the events" : `GPU ${curve.device}: memory over the events`),
    names.length === 0
      ? h("p", { class: "muted" }, "Events are missing in this file.")
      : [
          h("p", { class: "coarse-scale tabular muted" }, bytes(top)),
          svg(
            "svg",
            {
              viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
              preserveAspectRatio: "none",
              role: "img",
              "aria-label": `${words.join(". ")}. ${count(curve.events)} events.`,
            },
            names.map(path),
          ),
          h(
            "p",
            { class: "coarse-scale tabular muted" },
            h("span", {}, "event 0"),
            h("span", {}, count(curve.events)),
          ),
        ],
    h(
      "figcaption",
      {},
      names.map((name, at) => h("span", {}, h("span", { class: `swatch ${name}` }), words[at])),
      h("span", { class: "muted" }, "without rounding; details follow"),
    ),
  );
}
