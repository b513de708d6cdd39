/** The change that is most worth trying: one or two sentences, the saving, and a link to the page that explains it. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, isKnown } from "vramscope/format.js";
import { withCode } from "vramscope/parts/ui.js";

/** Delay of the request, which may replay a recording for seconds: the charts come first. */
const CHARTS_FIRST_MS = 1000;
const REFRESH_MS = 2000; // while settings are replayed; the server waits for that, too
const BUTTONS = {
  "/oom": "See all remedies",
  "/leaks": "See the leak",
  "/anatomy": "See the recorded peak",
  "/fragmentation": "See fragmentation",
};

export class NextChange {
  element = h("div", { class: "next-change", "aria-live": "polite" });
  key = null;

  /** Requests the change where something that it depends on is new. */
  async show(run) {
    const has = run.recordings || run.leak_count || run.oom_records || run.findings?.length;
    const key = JSON.stringify([run.recordings, run.leak_count, run.oom_records, run.state, run.findings?.length]);
    if (key === this.key) return;
    this.key = key;
    if (!has) {
      fill(this.element);
      return;
    }
    if (!this.element.childNodes.length)
      fill(this.element, h("p", { class: "muted" }, "Looking for the change that is most worth trying…"));
    await new Promise((resolve) => setTimeout(resolve, CHARTS_FIRST_MS));
    if (key !== this.key) return;
    try {
      for (let pending = true; pending && key === this.key; ) {
        const change = await api.nextChange(run.run_id);
        if (key === this.key) fill(this.element, drawn(change, run.findings ?? []));
        pending = change.pending && this.element.isConnected;
        if (pending) await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
      }
    } catch {
      if (key === this.key) fill(this.element); // the page that explains it reports the problem
    }
  }
}

/** `findings` are listed on the same page: the text of one is not repeated. */
function drawn({ run_id: run, title, what, saves_bytes: saves, of, page, caution, reason }, findings) {
  if (!what) return h("p", { class: "muted" }, reason);
  return [
    h(
      "p",
      {},
      h("strong", {}, title ? ["Most worth trying: ", withCode(title), "."] : "Most worth trying:"),
      " ",
      title && findings.some(({ text }) => text === what) ? "See the findings." : withCode(what),
      caution && h("span", { class: "muted" }, ` ${caution}`),
    ),
    isKnown(saves) && saves > 0 && h("span", { class: "chip good" }, of ? `${bytes(saves)} less peak ${of}` : `saves ${bytes(saves)}`),
    page && h("a", { class: "button small", href: `/runs/${encodeURIComponent(run)}${page}` }, BUTTONS[page]),
  ];
}
