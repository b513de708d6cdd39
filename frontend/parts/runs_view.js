/** How the list of runs is shown: its columns, its groups and the scale of its sparklines, in the URL. */

import { h } from "vramscope/dom.js";
import { isKnown } from "vramscope/format.js";
import { RUNS_COLUMNS } from "vramscope/parts/runs_columns.js";
import { GROUPS } from "vramscope/parts/runs_groups.js";
import { SavedViews } from "vramscope/parts/saved_views.js";
import { tableItems } from "vramscope/parts/table_download.js";
import { setQuery, store } from "vramscope/store.js";

const REMEMBERED = "vramscope.runs.columns";
const ON_A_PHONE = ["state", "run", "peak_allocated", "vs_baseline", "started", "peaks"];
const PHONE_PX = 720;
const EDGES_PX = 72; // the check box and the pin
/** Columns that are left out where the list is too narrow, the first ones first, unless they are chosen. */
const WHERE_ROOM = [
  "note",
  "techniques",
  "unusable",
  "never_needed",
  "device",
  "ranks",
  "tags",
  "project",
  "step_time",
  "steps",
  "peaks",
  "started",
  "vs_baseline",
];

const IDS = RUNS_COLUMNS.map(({ id }) => id);

/** True if a text is a valid `columns` of the URL. */
export const areColumns = (text) => text.split(",").every((id) => IDS.includes(id));

/** Columns that fit into a width, if none are chosen. */
function fitting(width, hasBaseline) {
  const shown = new Set(IDS);
  if (!hasBaseline) shown.delete("vs_baseline");
  const needed = () => RUNS_COLUMNS.reduce((sum, { id, least }) => sum + (shown.has(id) ? least : 0), EDGES_PX);
  for (const id of WHERE_ROOM) if (needed() > width) shown.delete(id);
  return shown;
}

function remembered() {
  try {
    const text = localStorage.getItem(REMEMBERED);
    return text && areColumns(text) ? text : null;
  } catch {
    return null; // storage is blocked: the choice lasts as long as the URL
  }
}

function remember(text) {
  try {
    if (text) localStorage.setItem(REMEMBERED, text);
    else localStorage.removeItem(REMEMBERED);
  } catch {
    // storage is blocked
  }
}

/** Filter of the list, as in the URL. */
function listed() {
  const { q: query, project, state, tag, device: device_name, job: cluster_job } = store.get().query;
  return { query, project, state, tag, device_name, cluster_job };
}

export class RunsView {
  shown = new Set();
  group = "";
  ownScale = false;
  ceiling = null; // bytes; null: each sparkline to its own highest

  constructor(sortList) {
    this.boxes = new Map(
      RUNS_COLUMNS.map(({ id, label }) => [
        id,
        h("input", {
          type: "checkbox",
          disabled: id === "run",
          "aria-label": `column ${label}`,
          onchange: (event) => this.toggle(id, event.target.checked),
        }),
      ]),
    );
    this.groups = h(
      "select",
      { "aria-label": "Group by", onchange: (event) => setQuery({ group: event.target.value || null }) },
      h("option", { value: "" }, "No groups"),
      GROUPS.map((group) => h("option", { value: group }, `By ${group}`)),
    );
    this.scales = h(
      "select",
      { "aria-label": "Scale of the peaks", onchange: (event) => setQuery({ scale: event.target.value || null }) },
      h("option", { value: "" }, "One for all runs"),
      h("option", { value: "own" }, "Each run its own"),
    );
    this.element = h(
      "details",
      { class: "menu runs-view" },
      h("summary", { class: "button" }, "View"),
      h(
        "div",
        { class: "menu-list" },
        new SavedViews().element,
        h("label", {}, h("span", {}, "Sort"), sortList),
        h("label", {}, h("span", {}, "Groups"), this.groups),
        h("label", {}, h("span", {}, "Peaks scale"), this.scales),
        h(
          "fieldset",
          {},
          h("legend", {}, "Columns"),
          RUNS_COLUMNS.map(({ id, label }) => h("label", {}, this.boxes.get(id), label)),
        ),
        h("button", { class: "button small", type: "button", onclick: () => this.reset() }, "Standard columns"),
        h("div", { class: "runs-downloads" }, tableItems("runs", listed, "Download all columns")),
      ),
    );
    const columns = remembered();
    if (columns && !store.get().query.columns) setQuery({ columns });
  }

  /**
   * Reads the view from the URL. `width`: pixels of the list; `hasBaseline`: whether a column of changes has content.
   * Returns whether the columns, groups or scale changed.
   */
  read(width, hasBaseline) {
    const { columns = "", group = "", scale = "" } = store.get().query;
    const chosen = columns && areColumns(columns) ? new Set([...columns.split(","), "run"]) : null;
    const narrow = innerWidth <= PHONE_PX;
    const shown = narrow ? new Set(ON_A_PHONE) : (chosen ?? fitting(width, hasBaseline));
    const before = [...this.shown, this.group, this.ownScale].join();
    this.shown = new Set(IDS.filter((id) => shown.has(id)));
    this.group = GROUPS.includes(group) ? group : "";
    this.ownScale = scale === "own";
    this.columns = RUNS_COLUMNS.filter(({ id }) => this.shown.has(id));
    this.least = this.columns.reduce((sum, { least }) => sum + least, EDGES_PX + 6);
    this.isWide = !narrow && this.least > width;
    for (const [id, box] of this.boxes) box.checked = this.shown.has(id);
    this.groups.value = this.group;
    this.scales.value = this.ownScale ? "own" : "";
    this.element.classList.toggle("narrow", narrow);
    return before !== [...this.shown, this.group, this.ownScale].join();
  }

  /** Tracks of the grid that a row is. */
  get tracks() {
    return ["34px", ...this.columns.map(({ width }) => width), "38px"].join(" ");
  }

  toggle(id, on) {
    const shown = new Set(this.shown);
    if (on) shown.add(id);
    else shown.delete(id);
    const text = IDS.filter((one) => shown.has(one)).join(",");
    remember(text);
    setQuery({ columns: text });
  }

  reset() {
    remember(null);
    setQuery({ columns: null });
  }

  /**
   * Sets the ceiling of the sparklines from the rows. It is at most 19 % above the highest peak, so that a growing peak
   * seldom changes it. Returns whether it changed.
   */
  scaleTo(rows) {
    const higher = (top, value) => (isKnown(value) && value > top ? value : top);
    const highest = rows.reduce((top, { sparkline }) => sparkline.reduce(higher, top), 0);
    const ceiling = this.ownScale || highest === 0 ? null : 2 ** (Math.ceil(Math.log2(highest) * 4) / 4);
    const changed = ceiling !== this.ceiling;
    this.ceiling = ceiling;
    return changed;
  }
}
