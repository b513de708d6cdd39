/** One snapshot: its devices, and for each of them timeline and flamegraph, segments with what-ifs, and all events. */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { onAction } from "vramscope/keys.js";
import { bytes, count, isKnown, moment, seconds } from "vramscope/format.js";
import { stateOf } from "vramscope/pages/snapshots.js";
import * as unknownPage from "vramscope/pages/unknown.js";
import { AnatomyView } from "vramscope/parts/anatomy_view.js";
import { EventsTable } from "vramscope/parts/events_table.js";
import { problemBanner } from "vramscope/parts/pieces.js";
import { SegmentsView } from "vramscope/parts/segments_view.js";
import { go, setQuery, store } from "vramscope/store.js";

const TABS = [["timeline", "Timeline and flame"], ["segments", "Segments and what-if"], ["events", "Events"]];
const SOON_MS = 400;
/** The view without what belongs to one device: its moments, windows, and what is searched for. */
const NO_VIEW = Object.fromEntries([...AnatomyView.VIEW, ...SegmentsView.VIEW, ...EventsTable.VIEW, "card"].map((name) => [name, null]));

class SnapshotPage {
  views = {};
  stops = [];

  constructor(root, ident) {
    this.root = root;
    this.ident = ident;
    document.title = "Snapshot · vramscope";
    fill(root, h("p", { class: "muted" }, "loading…"));
    loadPlotly().catch(() => {});
    this.look();
  }

  async look() {
    try {
      this.snapshot = await api.snapshot(this.ident);
    } catch (error) {
      if (this.closed || error.status === 401) return;
      if (error.status === 404) this.inner = unknownPage.open(this.root, { path: `/snapshots/${this.ident}`, problem: error });
      else fill(this.root, problemBanner(error));
      return;
    }
    if (this.closed) return;
    document.title = `${this.snapshot.name} · vramscope`;
    if (this.snapshot.state === "ready") {
      this.build();
      return;
    }
    fill(this.root, this.head(), h("section", { class: "card empty" }, h("h2", {}, this.snapshot.state === "failed" ? "This file cannot be opened" : "It is on its way"), h("p", {}, stateOf(this.snapshot))));
    if (this.snapshot.state !== "failed") this.waiting = setTimeout(() => this.look(), SOON_MS);
  }

  close() {
    this.closed = true;
    clearTimeout(this.waiting);
    this.inner?.close();
    for (const stop of this.stops) stop();
    this.closeViews();
  }

  closeViews() {
    for (const view of Object.values(this.views)) view.close();
    this.views = {};
    if (this.parts) fill(this.parts.view);
  }

  get device() {
    const { devices } = this.snapshot;
    return devices.find((one) => String(one.device) === store.get().query.device) ?? devices[0];
  }

  get tab() {
    const { tab } = store.get().query;
    return TABS.some(([name]) => name === tab) ? tab : "timeline";
  }

  build() {
    this.parts = Object.fromEntries(["facts", "trouble", "view"].map((name) => [name, h("div")]));
    const { devices } = this.snapshot;
    this.chooser = devices.length > 1 && h("select", { "aria-label": "Device", onchange: () => setQuery({ ...NO_VIEW, device: this.chooser.value }, { push: true }) }, devices.map((one) => h("option", { value: String(one.device) }, `GPU ${one.device}: ${count(one.events)} events, ${bytes(one.peak_reserved_bytes)} at the peak`)));
    this.tabs = h("nav", { class: "tabs", "aria-label": "Views" }, TABS.map(([name, label]) => h("a", { "data-tab": name, href: "#", onclick: (event) => { event.preventDefault(); setQuery({ tab: name === "timeline" ? null : name }, { push: true }); } }, label)));
    this.exports = h("details", { class: "menu" }, h("summary", { class: "button small" }, "Export the window"), h("div", { class: "menu-list" }));
    fill(this.root, this.head(), this.parts.facts, h("div", { class: "view-bar" }, this.tabs, h("span", { class: "spring" }), this.chooser && h("label", {}, h("span", { class: "muted" }, "Device"), this.chooser), this.exports), this.parts.trouble, this.parts.view);
    this.stops.push(
      onAction("back", () => this.tab === "timeline" && this.views.timeline?.pan(-0.5)),
      onAction("on", () => this.tab === "timeline" && this.views.timeline?.pan(0.5)),
      onAction("escape", () => setQuery({ from: null, to: null, low: null, high: null, allocation: null })),
    );
    this.show();
  }

  head() {
    const { name } = this.snapshot;
    const remove = async () => {
      if (!confirm(`Delete ${name}? Its file is needed to have it again.`)) return;
      this.closeViews(); // nothing is asked about what is deleted
      try {
        await api.deleteSnapshot(this.ident);
        go("/snapshots");
      } catch (error) {
        if (this.parts) this.show();
        fill(this.root.querySelector("[data-trouble]") ?? this.root, problemBanner(error));
      }
    };
    return h("div", { class: "page-head" }, h("div", {}, h("a", { href: "/snapshots", class: "muted" }, "Snapshots"), h("h1", { class: "file-name" }, name)), h("span", { class: "spring" }), h("button", { class: "button small quiet", type: "button", onclick: remove }, "Delete"), h("div", { "data-trouble": true }));
  }

  /** The URL has changed. */
  update() {
    if (!this.parts) return;
    const key = `${this.device.recording} ${this.tab}`;
    if (key !== this.shown) this.show();
    else this.view?.update();
    this.drawExports();
  }

  async show() {
    const { device, tab } = this;
    this.shown = `${device.recording} ${tab}`;
    if (this.chooser) this.chooser.value = String(device.device);
    for (const link of this.tabs.children) {
      if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    fill(this.parts.facts, facts(this.snapshot, device));
    this.drawExports();
    if (device.events === 0 && tab !== "segments") {
      this.view = null;
      fill(this.parts.view, h("section", { class: "card empty" }, h("h2", {}, "There is no history"), h("p", {}, "The file tells what lay there when it was written, and not how that came: see Segments. With torch.cuda.memory._record_memory_history() a training records its history.")));
      return;
    }
    try {
      this.told = this.told?.recording === device.recording ? this.told : await api.recording(device.recording, "moments");
    } catch (error) {
      if (!this.closed) fill(this.parts.trouble, problemBanner(error));
      return;
    }
    if (this.closed || this.shown !== `${device.recording} ${tab}`) return;
    fill(this.parts.trouble);
    const fresh = !this.views[tab];
    this.view = this.views[tab] ??= this.make(tab);
    fill(this.parts.view, this.view.element);
    if (fresh || this.view.openedOn !== device.recording) {
      this.view.openedOn = device.recording;
      this.view.open(this.told);
    } else this.view.update();
  }

  make(tab) {
    const file = this.snapshot.name.replace(/[^\w.-]+/g, "_");
    if (tab === "segments") return new SegmentsView({ file });
    if (tab === "timeline") return new AnatomyView({ file, by: "site" }); // a file tells of no categories
    return new EventsTable({
      onEvent: (event) => setQuery({ tab: null, event, from: null, to: null }, { push: true }),
      onAllocation: (allocation, event) => setQuery({ tab: null, allocation, event, from: null, to: null }, { push: true }),
    });
  }

  drawExports() {
    const { from, to } = store.get().query;
    const window = { from: /^-?\d+$/.test(from ?? "") ? Math.max(0, Number(from)) : null, to: /^\d+$/.test(to ?? "") ? to : null };
    const words = window.to === null ? "all events" : `events ${count(window.from)} to ${count(Number(window.to))}`;
    const link = (format, label) => h("a", { class: "menu-item", href: api.exportUrl(this.device.recording, { format, ...window }), download: true }, label);
    fill(this.exports.querySelector(".menu-list"), h("span", { class: "muted menu-words" }, words), link("csv", "CSV"), link("parquet", "Parquet"), link("perfetto", "Perfetto (JSON)"), link("html", "A page that stands alone (HTML)"));
  }
}

function facts(snapshot, device) {
  const span = isKnown(device.first_time_ns) ? seconds((device.last_time_ns - device.first_time_ns) / 1e9) : null;
  const said = [
    `${count(device.events)} events`,
    span && `over ${span}, from ${moment(device.first_time_ns / 1e9)}`,
    `${count(device.allocations)} allocations`,
    `${bytes(device.peak_reserved_bytes)} reserved at the peak`,
    device.out_of_memory > 0 && `${count(device.out_of_memory)} out of memory`,
    device.streams.length > 1 && `${count(device.streams.length)} streams`,
    device.private_pools.length > 0 && `${count(device.private_pools.length)} private ${device.private_pools.length === 1 ? "pool" : "pools"}: ${device.private_pools.slice(0, 4).map((pool) => pool.join(",")).join("; ")}`,
  ].filter(Boolean);
  const notes = [...snapshot.notes, ...device.notes];
  return [
    h("p", { class: "snapshot-facts" }, said.join(" · "), h("br"), h("span", { class: "muted" }, "allocator settings: "), h("code", {}, device.settings || "default")),
    notes.length > 0 && h("p", { class: "muted snapshot-notes" }, notes.join(" ")),
  ];
}

export const open = (root, { snapshot }) => new SnapshotPage(root, snapshot);
