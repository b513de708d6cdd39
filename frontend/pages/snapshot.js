/** Page of one snapshot. For each device: timeline and flamegraph, segments with what-ifs, and all events. */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { onAction } from "vramscope/keys.js";
import { bytes, count, isKnown, dateTime, seconds } from "vramscope/format.js";
import { stateOf } from "vramscope/pages/snapshots.js";
import * as unknownPage from "vramscope/pages/unknown.js";
import { coarseCurve } from "vramscope/parts/coarse_curve.js";
import { AnatomyView } from "vramscope/parts/anatomy_view.js";
import { EventsTable } from "vramscope/parts/events_table.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { RecordingViews, movesOf } from "vramscope/parts/recording_views.js";
import { SegmentsView } from "vramscope/parts/segments_view.js";
import { go, setQuery, store } from "vramscope/store.js";

const SOON_MS = 120;
const LATER_MS = 600;
const SHARE = 0.05; // of the time so far: a file that takes a minute is asked for less often
/** Patch of the URL that removes the view of a device: event, windows and search. */
const NO_VIEW = Object.fromEntries(
  [...AnatomyView.VIEW, ...SegmentsView.VIEW, ...EventsTable.VIEW, "card"].map((name) => [name, null]),
);

class SnapshotPage {
  stops = [];

  constructor(root, ident) {
    this.root = root;
    this.ident = ident;
    this.openedAt = performance.now();
    document.title = "Snapshot · vramscope";
    fill(root, h("p", { class: "muted" }, "loading…"));
    loadPlotly().catch(() => {});
    this.load();
  }

  async load() {
    const asked = (this.asked = new AbortController());
    try {
      this.snapshot = await api.snapshot(this.ident, asked.signal);
    } catch (error) {
      if (this.closed || error.status === 401 || error.name === "AbortError") return;
      if (error.status === 404)
        this.inner = unknownPage.open(this.root, { path: `/snapshots/${this.ident}`, problem: error });
      else fill(this.root, problemBanner(error));
      return;
    }
    if (this.closed || asked.signal.aborted) return;
    document.title = `${this.snapshot.name} · vramscope`;
    if (this.snapshot.state === "ready") {
      this.build();
      return;
    }
    fill(
      this.root,
      this.head(),
      h(
        "section",
        { class: "card empty" },
        h("h2", {}, this.snapshot.state === "failed" ? "This file cannot be opened" : "It is being read"),
        h("p", {}, stateOf(this.snapshot)),
      ),
      this.coarseCurves(),
    );
    const pause = Math.min(LATER_MS, Math.max(SOON_MS, SHARE * (performance.now() - this.openedAt)));
    if (this.snapshot.state !== "failed") this.waiting = setTimeout(() => this.load(), pause);
  }

  /** Asks no more how far the server is. An answer that is on its way is not shown. */
  askNoMore() {
    clearTimeout(this.waiting);
    this.asked.abort();
  }

  close() {
    this.closed = true;
    this.askNoMore();
    this.inner?.close();
    for (const stop of this.stops) stop();
    this.views?.close();
  }

  /** Coarse pictures of the devices, drawn once. The server has them when it has read the file. */
  coarseCurves() {
    const { curves } = this.snapshot;
    if (curves.length > 0 && !this.coarse) this.coarse = curves.map((one) => coarseCurve(one, curves.length === 1));
    return this.coarse;
  }

  get device() {
    const { devices } = this.snapshot;
    return devices.find((one) => String(one.device) === store.get().query.device) ?? devices[0];
  }

  build() {
    this.parts = Object.fromEntries(["facts", "trouble"].map((name) => [name, h("div")]));
    const { devices } = this.snapshot;
    this.chooser =
      devices.length > 1 &&
      h(
        "select",
        {
          "aria-label": "Device",
          onchange: () => setQuery({ ...NO_VIEW, device: this.chooser.value }, { push: true }),
        },
        devices.map((one) =>
          h(
            "option",
            { value: String(one.device) },
            `GPU ${one.device}: ${count(one.events)} events, ${bytes(one.peak_reserved_bytes)} at the peak`,
          ),
        ),
      );
    const file = this.snapshot.name.replace(/[^\w.-]+/g, "_");
    this.views = new RecordingViews(
      [
        ["timeline", "Timeline and flamegraph", () => new AnatomyView({ file, by: "site" })], // snapshot files have no categories
        ["segments", "Segments and what-if", () => new SegmentsView({ file, said: () => notesOf(this.snapshot, this.device) })],
      ],
      {
        beside: this.chooser && h("label", {}, h("span", { class: "muted" }, "Device"), this.chooser),
        instead: noHistory,
      },
    );
    fill(this.root, this.head(), this.parts.facts, this.parts.trouble, this.views.element);
    this.stops.push(
      onAction("back", () => this.views.pan(-0.5)),
      onAction("on", () => this.views.pan(0.5)),
      ...Object.entries(movesOf(() => this.views)).map(([name, act]) => onAction(name, act)),
      onAction("escape", () => setQuery({ from: null, to: null, low: null, high: null, allocation: null })),
    );
    this.show();
  }

  head() {
    const { name } = this.snapshot;
    const remove = async () => {
      if (!confirm(`Delete ${name}? Only a new upload brings it back.`)) return;
      this.views?.close(); // sends no more requests for the deleted snapshot
      this.askNoMore();
      try {
        await api.deleteSnapshot(this.ident);
        go("/snapshots");
      } catch (error) {
        this.trouble = problemBanner(error);
        if (this.parts) this.show();
        else this.load();
        fill(this.root.querySelector("[data-trouble]"), this.trouble);
      }
    };
    return h(
      "div",
      { class: "page-head snapshot-head" },
      h("div", {}, h("a", { href: "/snapshots", class: "muted" }, "Snapshots"), h("h1", { class: "file-name" }, name)),
      h("span", { class: "spring" }),
      h("button", { class: "button small", type: "button", onclick: remove }, "Delete"),
      h("div", { "data-trouble": true }, this.trouble),
    );
  }

  /** Called when the URL changes. */
  update() {
    if (!this.parts) return;
    if (this.device.recording !== this.shown) this.show();
    else this.views.update();
  }

  async show() {
    const { device } = this;
    this.shown = device.recording;
    if (this.chooser) this.chooser.value = String(device.device);
    fill(this.parts.facts, facts(this.snapshot, device));
    try {
      const moments = await api.recording(device.recording, "moments");
      if (this.closed || this.shown !== device.recording) return;
      fill(this.parts.trouble);
      this.views.open(moments);
    } catch (error) {
      if (!this.closed && this.shown === device.recording) fill(this.parts.trouble, problemBanner(error));
    }
  }
}

/** Text instead of the views of a history, for a file without one. Null otherwise. */
function noHistory({ events }, tab) {
  if (events > 0 || tab === "segments") return null;
  return h(
    "section",
    { class: "card empty" },
    h("h2", {}, "No history"),
    h(
      "p",
      {},
      "This file has the memory layout only: see Segments. torch.cuda.memory._record_memory_history() records the history.",
    ),
  );
}

function facts(snapshot, device) {
  const span = isKnown(device.first_time_ns) ? seconds((device.last_time_ns - device.first_time_ns) / 1e9) : null;
  const parts = [
    `${count(device.events)} events`,
    span && `over ${span}, from ${dateTime(device.first_time_ns / 1e9)}`,
    `${count(device.allocations)} allocations`,
    `${bytes(device.peak_reserved_bytes)} reserved at the peak`,
    device.out_of_memory > 0 && `${count(device.out_of_memory)} out of memory`,
    device.streams.length > 1 && `${count(device.streams.length)} streams`,
    device.private_pools.length > 0 &&
      `${count(device.private_pools.length)} private ${device.private_pools.length === 1 ? "pool" : "pools"}: ${device.private_pools
        .slice(0, 4)
        .map((pool) => pool.join(","))
        .join("; ")}`,
  ].filter(Boolean);
  const notes = notesOf(snapshot, device);
  return [
    h(
      "p",
      { class: "snapshot-facts" },
      parts.join(" · "),
      h("br"),
      h("span", { class: "muted" }, "allocator settings: "),
      h("code", {}, device.settings || "default"),
      (device.settings_given ?? device.settings) !== device.settings &&
        h("span", { class: "muted" }, ` (configured: ${device.settings_given || "none"})`),
    ),
    settingsInForce(device.settings_in_force ?? {}),
    notes.length > 0 && h("p", { class: "muted snapshot-notes" }, notes.join(" ")),
  ];
}

const notesOf = (snapshot, device) => [...snapshot.notes, ...device.notes];

/** All allocator settings that PyTorch reports at the end. The settings string contains only some of them. */
function settingsInForce(settings) {
  const rows = Object.entries(settings).sort(([one], [other]) => (one < other ? -1 : 1));
  return (
    rows.length > 0 &&
    h(
      "details",
      { class: "settings-in-force" },
      h("summary", { class: "muted" }, `${rows.length} settings reported by PyTorch`),
      h(
        "dl",
        { class: "facts" },
        rows.map(([name, value]) => [
          h("dt", {}, h("code", {}, name)),
          h("dd", {}, h("code", {}, String(value ?? "unknown"))),
        ]),
      ),
    )
  );
}

export const open = (root, { snapshot }) => new SnapshotPage(root, snapshot);
