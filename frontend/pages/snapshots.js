/** Snapshots page: files are uploaded, converted by the server one by one, and opened. */

import { api } from "vramscope/api.js";
import { loadPlotly } from "vramscope/charts/plotly.js";
import { fill, h } from "vramscope/dom.js";
import { ago, bytes, count, isKnown, dateTime, percent } from "vramscope/format.js";
import { errorText } from "vramscope/parts/error_text.js";
import { known, problemBanner, sized, snippet } from "vramscope/parts/ui.js";
import { TableSort } from "vramscope/parts/table_sort.js";
import { SnapshotUpload } from "vramscope/parts/snapshot_upload.js";
import { go } from "vramscope/store.js";

const whenIdle = globalThis.requestIdleCallback ?? setTimeout; // Safari has none
const SOON_MS = 400;
const LATER_MS = 5000;

class SnapshotsPage {
  sort = new TableSort(() => this.draw());
  known = []; // files that were uploaded and stored before

  constructor(root) {
    this.parts = Object.fromEntries(
      ["trouble", "list", "runs"].map((name) => [name, h("div", { class: "snapshot-list" })]),
    );
    this.upload = new SnapshotUpload({ onTaken: (taken, isAlone) => this.taken(taken, isAlone) });
    this.status = h("div", { class: "snapshot-list", role: "status", "aria-live": "polite" });
    const heading = h("h2", {}, "Or explain the text of an error");
    const text = h("section", { class: "card pad snapshot-list", hidden: true }, errorText({ heading }));
    document.title = "Snapshots · vramscope";
    fill(
      root,
      h("div", { class: "page-head" }, h("h1", {}, "Snapshots")),
      this.upload.element,
      this.status,
      this.parts.trouble,
      this.parts.list,
      this.parts.runs,
      text,
    );
    // What is above comes first: it would push down what is there already.
    this.parts.runs.hidden = true;
    const listed = this.load().then(() => (this.parts.runs.hidden = false));
    Promise.allSettled([listed, this.loadRuns()]).then(() => (text.hidden = false));
    this.onVisibilityChange = () => !document.hidden && this.load();
    document.addEventListener("visibilitychange", this.onVisibilityChange);
    // A snapshot opens as soon as it is read: its charts should not wait a second for Plotly then.
    whenIdle(() => this.closed || loadPlotly().catch(() => {}));
  }

  close() {
    this.closed = true;
    clearTimeout(this.waiting);
    document.removeEventListener("visibilitychange", this.onVisibilityChange);
    this.upload.close();
  }

  /** The server has a file. A file alone opens by itself; of several each is listed. */
  taken(taken, isAlone) {
    if (isAlone) {
      go(`/snapshots/${taken.snapshot}`);
      return;
    }
    if (taken.known) this.known.push(taken);
    fill(
      this.status,
      this.known.map(({ name, snapshot }) =>
        h(
          "div",
          { class: "banner quiet" },
          h("span", {}, `${name} is already stored: `, h("a", { href: `/snapshots/${snapshot}` }, "open it"), "."),
        ),
      ),
    );
    this.load();
  }

  async load() {
    clearTimeout(this.waiting);
    try {
      this.list = await api.snapshots();
      if (this.closed) return;
      fill(this.parts.trouble);
      this.draw();
    } catch (error) {
      if (this.closed) return;
      if (error.status !== 401) fill(this.parts.trouble, problemBanner(error));
    }
    const busy = this.list?.snapshots.some((one) => one.state === "waiting" || one.state === "converting");
    if (!document.hidden) this.waiting = setTimeout(() => this.load(), busy ? SOON_MS : LATER_MS);
  }

  async loadRuns() {
    try {
      const { runs } = await api.runs({ limit: 200 });
      if (this.closed) return;
      fill(this.parts.runs, recordedByRuns(runs.filter((run) => run.recordings > 0)));
    } catch {
      // the list of snapshots reports the problem
    }
  }

  async remove(snapshot) {
    if (!confirm(`Delete ${snapshot.name}? Only a new upload brings it back.`)) return;
    try {
      await api.deleteSnapshot(snapshot.snapshot);
    } catch (error) {
      fill(this.parts.trouble, problemBanner(error));
    }
    this.load();
  }

  draw() {
    const { snapshots, stored_bytes: stored, max_bytes: most } = this.list;
    const key = JSON.stringify([snapshots, this.sort.state]);
    if (key === this.drawn) return;
    this.drawn = key;
    if (snapshots.length === 0) {
      fill(this.parts.list, nothingYet());
      return;
    }
    fill(
      this.parts.list,
      h(
        "section",
        { class: "card scroll", "aria-label": "Snapshot files" },
        h(
          "table",
          { class: "plain snapshots-table" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              Object.keys(KEYS).map((head, at) =>
                this.sort.head(head, at > 1 ? `number of-${head.split(" ")[0].toLowerCase()}` : null),
              ),
              h("td"),
            ),
          ),
          h(
            "tbody",
            {},
            this.sort.order(snapshots, KEYS).map((snapshot) => row(snapshot, () => this.remove(snapshot))),
          ),
        ),
      ),
      h(
        "p",
        { class: "muted" },
        `${bytes(stored)} of ${bytes(most)} used by snapshots. When full, the oldest are deleted.`,
      ),
    );
  }
}

const eventsOf = ({ state, devices }) =>
  state === "ready" ? devices.reduce((sum, device) => sum + device.events, 0) : null;
const peakOf = ({ state, devices }) =>
  state === "ready" ? Math.max(...devices.map((device) => device.peak_reserved_bytes)) : null;

/** Columns, and the key that rows are sorted by. */
const KEYS = {
  File: ({ name }) => name.toLowerCase(),
  State: ({ state }) => state,
  Size: (snapshot) => snapshot.bytes,
  Events: eventsOf,
  "Peak reserved": peakOf,
  Received: (snapshot) => snapshot.received_seconds,
};

function row(snapshot, onDelete) {
  const { devices, state } = snapshot;
  const [events, peak] = [eventsOf(snapshot), peakOf(snapshot)];
  return h(
    "tr",
    { "data-snapshot": snapshot.snapshot, "data-state": state },
    h(
      "td",
      { class: "file-name" },
      state === "ready" ? h("a", { href: `/snapshots/${snapshot.snapshot}` }, snapshot.name) : snapshot.name,
      devices.length > 1 && h("span", { class: "muted" }, ` · ${devices.length} devices`),
    ),
    h("td", {}, stateOf(snapshot)),
    h("td", { class: "number tabular of-size" }, sized(snapshot.bytes)),
    h("td", { class: "number tabular of-events" }, isKnown(events) ? count(events) : known("unknown", { short: true })),
    h("td", { class: "number tabular of-peak" }, sized(peak, { short: true })),
    h(
      "td",
      { class: "number" },
      h("time", { title: dateTime(snapshot.received_seconds) }, ago(snapshot.received_seconds, Date.now() / 1000)),
    ),
    h(
      "td",
      { class: "number" },
      h(
        "button",
        { class: "button small quiet", type: "button", "aria-label": `Delete ${snapshot.name}`, onclick: onDelete },
        "Delete",
      ),
    ),
  );
}

/** State of a snapshot: progress of its conversion, or the problem with it. */
export function stateOf({ state, place, preparing, done_bytes: done, total_bytes: total, problem }) {
  if (state === "ready") return "ready";
  if (state === "failed") return h("span", { class: "more" }, `cannot be opened: ${problem}`);
  if (state === "waiting") return place > 0 ? `waiting; ${count(place)} before it` : "waiting";
  const words = preparing
    ? "preparing; slower the first time after an installation…"
    : done >= total && total > 0
      ? "computing lifetimes and peaks…"
      : `reading, ${percent(done / Math.max(total, 1), 0)}`;
  return h(
    "span",
    { class: "job" },
    h(
      "progress",
      preparing || done >= total ? { "aria-label": words } : { max: String(total), value: done, "aria-label": words },
    ),
    h("span", { class: "muted tabular" }, words),
  );
}

function nothingYet() {
  return h(
    "section",
    { class: "card empty" },
    h("h2", {}, "No snapshots yet"),
    h("p", {}, "A snapshot is PyTorch's record of its CUDA allocator. In a training:"),
    h(
      "div",
      { class: "narrow" },
      snippet(
        'torch.cuda.memory._record_memory_history()\n# ... some steps\ntorch.cuda.memory._dump_snapshot("snapshot.pickle")',
      ),
    ),
    h("p", { class: "or" }, "From a terminal:"),
    h("div", { class: "narrow" }, snippet(`vramscope snapshot snapshot.pickle --server ${location.origin}`)),
  );
}

function recordedByRuns(runs) {
  if (runs.length === 0) return null;
  return h(
    "section",
    { class: "card", "aria-label": "Recorded by runs" },
    h("header", {}, h("h2", {}, "Recorded by runs")),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "plain" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            h("th", { scope: "col" }, "Run"),
            h("th", { class: "number", scope: "col" }, "Recordings"),
            h("th", { scope: "col" }, ""),
          ),
        ),
        h(
          "tbody",
          {},
          runs.map((run) => {
            const path = `/runs/${encodeURIComponent(run.run_id)}`;
            return h(
              "tr",
              {},
              h("td", { class: "file-name" }, h("a", { href: path }, run.name)),
              h("td", { class: "number tabular" }, count(run.recordings)),
              h(
                "td",
                {},
                h("a", { href: `${path}/anatomy` }, "Anatomy"),
                " · ",
                h("a", { href: `${path}/fragmentation` }, "Fragmentation"),
              ),
            );
          }),
        ),
      ),
    ),
  );
}

export const open = (root) => new SnapshotsPage(root);
