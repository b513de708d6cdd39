/** Menu that exports the window of a recording to a file. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { windowIn } from "vramscope/parts/event_window.js";
import { store } from "vramscope/store.js";

const FORMATS = [
  ["csv", "CSV"],
  ["parquet", "Parquet"],
  ["perfetto", "Perfetto (JSON)"],
  ["html", "Standalone page (HTML)"],
];
const PARQUET_MISSING = "Parquet: needs pyarrow on the server";

export class ExportMenu {
  constructor() {
    this.list = h("div", { class: "menu-list" });
    this.element = h(
      "details",
      { class: "menu" },
      h("summary", { class: "button small" }, "Export the window"),
      this.list,
    );
    this.parquet = null; // whether the server can write Parquet: not known yet
    api
      .server()
      .then(({ parquet }) => {
        this.parquet = parquet;
        if (this.recording) this.show(this.recording);
      })
      .catch(() => {});
  }

  /** Draws the links for a recording and the window of the URL. */
  show(recording) {
    this.recording = recording;
    const { from, to } = windowIn(store.get().query);
    const window = { from: from === null ? null : Math.max(0, from), to };
    const words = to === null ? "all events" : `events ${count(window.from)} to ${count(to)}`;
    const formats = FORMATS.filter(([format]) => format !== "parquet" || this.parquet);
    const links = formats.map(([format, label]) =>
      h("a", { class: "menu-item", href: api.exportUrl(recording, { format, ...window }), download: true }, label),
    );
    fill(
      this.list,
      h("span", { class: "muted menu-words" }, words),
      links,
      this.parquet === false && h("span", { class: "muted menu-words" }, PARQUET_MISSING),
    );
  }
}
