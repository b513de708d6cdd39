/** Rows of a profile: operations, modules or source lines. A click on a head sorts them. A search filters by name. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { called, count, isKnown, percent, phasePlace, seconds } from "vramscope/format.js";
import { tableDownload } from "vramscope/parts/table_download.js";
import { known, sized } from "vramscope/parts/ui.js";

const PAGE = 50;
const TYPING_MS = 160;
const TABS = [
  ["operations", "Operations"],
  ["modules", "Modules"],
  ["lines", "Lines"],
];
const nought = () => h("span", { class: "muted" }, "0");
const time = (value) =>
  value === 0 ? nought() : known(isKnown(value) ? seconds(value / 1e9) : "unknown", { short: true });
const size = (value) => (value === 0 ? nought() : sized(value, { short: true }));
const times = (value) => (value === 0 ? nought() : known(count(value), { short: true }));

/** Field, head, explanation, format of a value, and the class that hides the column on narrow pages. */
const COLUMNS = [
  ["calls", "Calls", "calls in the window", times, "less"],
  ["self_cpu_ns", "CPU self", "CPU time without callees, all calls", time, "less"],
  ["cpu_ns", "CPU", "CPU time with callees", time, ""],
  ["self_device_ns", "Device self", "kernel time without callees", time, "less device"],
  ["device_ns", "Device", "kernel time with callees", time, "device"],
  ["self_allocated_bytes", "Allocated self", "allocated in the window, without callees", size, "less"],
  ["allocated_bytes", "Allocated", "allocated in the window, with callees", size, ""],
  ["freed_bytes", "Freed", "freed while it ran, whoever allocated it", size, "less"],
  ["self_peak_bytes", "At peak self", "alive at the window's peak, without callees", size, ""],
  ["peak_bytes", "At peak", "alive at the window's peak, with callees", size, "less"],
];

export class ProfileTable {
  state = { table: "operations", sort: "self_peak_bytes", order: "falling", search: "", limit: PAGE };

  constructor() {
    this.tabs = h("div", { class: "segmented", role: "group", "aria-label": "Rows by" });
    this.search = h("input", {
      type: "search",
      placeholder: "search names…",
      "aria-label": "Search names",
      maxlength: "200",
      oninput: () => this.typed(),
    });
    this.status = h("span", { class: "muted", role: "status" });
    this.body = h("div");
    this.downloads = h("span");
    this.element = h(
      "section",
      { class: "card profile-rows" },
      h("header", {}, this.tabs, this.search, h("span", { class: "spring" }), this.status, this.downloads),
      this.body,
    );
  }

  /** Shows a profile. `profile`: its id. `facts`: answer of `/profiles/ID`. */
  open(profile, facts) {
    this.profile = profile;
    this.facts = facts;
    this.downloadsOf = null;
    this.load();
  }

  close() {
    clearTimeout(this.typing);
    this.request?.abort();
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.set({ search: this.search.value, limit: PAGE }), TYPING_MS);
  }

  set(change) {
    Object.assign(this.state, change);
    this.load();
  }

  async load() {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.drawTabs();
    const { table, ...query } = this.state;
    try {
      const answer = await api.profileTable(this.profile, table, query, request.signal);
      if (this.request === request) this.draw(answer);
    } catch (error) {
      if (error.name !== "AbortError") fill(this.body, h("p", { class: "pad" }, error.detail || error.message));
    }
  }

  drawTabs() {
    if (this.downloadsOf !== this.state.table) {
      this.downloadsOf = this.state.table;
      fill(this.downloads, tableDownload(this.state.table, () => ({ profile: this.profile })));
    }
    fill(
      this.tabs,
      TABS.map(([name, label]) =>
        h(
          "button",
          {
            type: "button",
            "aria-pressed": String(name === this.state.table),
            "data-table": name,
            onclick: () => this.set({ table: name, limit: PAGE }),
          },
          label,
          h("span", { class: "muted" }, ` ${count(this.facts.tables[name].rows)}`),
        ),
      ),
    );
  }

  draw({ rows, matched, total }) {
    const { table, sort, order } = this.state;
    this.status.textContent = matched === total ? "" : `${count(matched)} of ${count(total)}`;
    if (total === 0) {
      fill(this.body, h("p", { class: "pad muted" }, noRowsReason(table, this.facts)));
      return;
    }
    const columns = COLUMNS.filter(([name]) => this.facts.device_time || !name.includes("device"));
    const head = ([name, label, title, , less]) =>
      h(
        "th",
        {
          class: `number ${less}`,
          scope: "col",
          "aria-sort": name === sort ? (order === "falling" ? "descending" : "ascending") : null,
        },
        h(
          "button",
          {
            class: "sort",
            type: "button",
            title,
            onclick: () => this.set({ sort: name, order: name === sort && order === "falling" ? "rising" : "falling" }),
          },
          label,
          name === sort && (order === "falling" ? " ▾" : " ▴"),
        ),
      );
    const sortSum = this.facts.tables[table].sums[sort];
    const row = (one) =>
      h(
        "tr",
        { class: one.special ? "special" : null },
        h("th", { scope: "row" }, nameOf(table, one)),
        columns.map(([name, , , words, less]) =>
          h(
            "td",
            {
              class: `number ${less}`,
              title:
                name === sort && sortSum > 0 && isKnown(one[name]) ? `${percent(one[name] / sortSum)} of all` : null,
            },
            words(one[name]),
          ),
        ),
      );
    const sums = this.facts.tables[table].sums;
    fill(
      this.body,
      h(
        "div",
        { class: "scroll", tabindex: "0" },
        h(
          "table",
          { class: "plain" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "col" }, TABS.find(([name]) => name === table)[1].slice(0, -1)),
              columns.map(head),
            ),
          ),
          h("tbody", {}, rows.map(row)),
          h(
            "tfoot",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "row", title: "each byte and each time counts in one row" }, "All rows"),
              columns.map(([name, , , words, less]) =>
                h("td", { class: `number ${less}` }, name in sums ? words(sums[name]) : ""),
              ),
            ),
          ),
        ),
      ),
      rows.length === 0 && h("p", { class: "pad muted" }, "No matching name."),
      rows.length < matched &&
        h(
          "p",
          { class: "pad" },
          h(
            "button",
            {
              class: "button small",
              type: "button",
              onclick: () => this.set({ limit: Math.min(5000, this.state.limit * 4) }),
            },
            `Show more of ${count(matched)}`,
          ),
        ),
    );
  }
}

function nameOf(table, row) {
  if (row.special)
    return h("span", { class: "muted" }, row.name, row.phase && h("span", { class: "below" }, phasePlace(row.phase)));
  if (table === "operations")
    return [
      h("code", {}, row.name),
      h("span", { class: "below" }, [row.phase && phasePlace(row.phase), row.shapes].filter(Boolean).join(" · ")),
    ];
  if (table === "modules")
    return [h("code", {}, row.name), row.kind !== row.name && h("span", { class: "below" }, row.kind)];
  const short = row.file.split("/").at(-1);
  return [
    h("code", { title: row.file }, `${short}:${lineWords(row)}`),
    h("span", { class: "below" }, called(row.name)),
  ];
}

/** Line number: 57; 57–60 if it is known within a range; "57 or later" if only a bound is known. */
function lineWords({ line, last_line: last }) {
  if (last === line) return line;
  return last === null ? `${line} or later` : `${line}–${last}`;
}

function noRowsReason(table, facts) {
  if (table === "lines" && !facts.stacks)
    return "No source lines: this profile has no Python stacks. A requested profile has them.";
  if (table === "modules" && !facts.modules_known)
    return "Modules are unknown under torch.compile. A requested profile has them.";
  return "Nothing was recorded.";
}
