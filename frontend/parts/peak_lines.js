/** The peak of a recording and the lines that allocated it, in words: the answer where categories are not known. */

import { fill, h } from "vramscope/dom.js";
import { bytes, count, percent } from "vramscope/format.js";

const MOST_NAMED = 3;
const LEAST_SHARE = 0.01; // of a line that is named beside the first

export class PeakLines {
  constructor() {
    this.element = h("section", { class: "banner verdict quiet peak-lines", "data-verdict": true });
    this.clear();
  }

  clear() {
    this.isDrawn = false;
    this.element.hidden = false;
    fill(this.element, h("span", { class: "muted" }, "computing what the peak is made of…"));
  }

  /** The answer did not come, and the chart says why. */
  fail() {
    if (!this.isDrawn) this.element.hidden = true;
  }

  /** Draws the answer of `/timeline` for all events by `site`. `eventText(peak)`: the event in words. */
  show({ peak, series, joined }, eventText) {
    this.isDrawn = true;
    const { allocated_bytes: total } = peak;
    this.element.hidden = total === 0;
    if (total === 0) return;
    const lines = [...series]
      .sort((one, other) => other.peak_bytes - one.peak_bytes)
      .filter(({ peak_bytes: size }, at) => at < MOST_NAMED && (at === 0 || size >= LEAST_SHARE * total));
    const nameOf = ({ name, colour }) => {
      if (colour === "other") return `${count(joined)} other lines`;
      if (name === "before the recording") return "what was allocated before the recording";
      const found = /^no stack(?:: (.*))?$/.exec(name);
      if (!found) return name;
      return `calls without a stack${found[1] ? ` (${found[1]})` : ""}`;
    };
    fill(
      this.element,
      h("strong", {}, `The peak is ${bytes(total)}, at ${eventText(peak)}.`),
      h(
        "span",
        {},
        "Allocated by ",
        lines.map((line) => `${nameOf(line)} (${percent(line.peak_bytes / total, 0)})`).join(", "),
        ".",
      ),
    );
  }
}
