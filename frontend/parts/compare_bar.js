/** Controls of the comparison's table: groups, columns, link and exports. */

import { api } from "vramscope/api.js";
import { copyButton, download, fill, h } from "vramscope/dom.js";
import { EACH, NO_COLUMNS } from "vramscope/parts/compare_address.js";
import { columnsFor, differs, shownColumns } from "vramscope/parts/compare_columns.js";
import { settingName } from "vramscope/parts/setting_differences.js";
import { tableItems } from "vramscope/parts/table_download.js";
import { setQuery, store } from "vramscope/store.js";

const GROUPED_FIRST = ["tags", "techniques"];

export class CompareBar {
  /** `onProblem(error)`: called if an export fails. */
  constructor(onProblem) {
    this.onProblem = onProblem;
    this.groups = h("select", {
      "aria-label": "Group by",
      onchange: (event) => setQuery({ group: event.target.value || null, sort: null }),
    });
    this.boxes = h("fieldset", {}, h("legend", {}, "Columns"));
    this.columns = h(
      "details",
      { class: "menu compare-columns" },
      h("summary", { class: "button small" }, "Columns"),
      h(
        "div",
        { class: "menu-list" },
        this.boxes,
        h(
          "button",
          { class: "button small", type: "button", onclick: () => setQuery({ columns: null }) },
          "Standard columns",
        ),
      ),
    );
    const item = { class: "menu-item" };
    this.report = h("a", { ...item, download: true, title: "Table, settings and charts in one file" }, "Report (HTML)");
    this.tables = h("div", { class: "compare-tables" });
    this.exports = h(
      "details",
      { class: "menu compare-exports" },
      h("summary", { class: "button small" }, "Export"),
      h(
        "div",
        { class: "menu-list" },
        h("button", { ...item, type: "button", onclick: () => this.exportCsv() }, "This table (CSV)"),
        this.tables,
        this.report,
        copyButton("Copy Markdown", () => api.compareTable(this.tableQuery("markdown")), item),
        copyButton("Copy LaTeX", () => api.compareTable(this.tableQuery("latex")), item),
      ),
    );
    const link = copyButton("Copy link", () => this.permanentLink(), {
      title: "Contains run ids. Stays valid when runs are renamed.",
    });
    this.element = h("div", { class: "compare-controls" }, this.groups, this.columns, link, this.exports);
  }

  /** Draws the controls for an answer of `/compare`. `rows`: rows of the table. */
  draw(answer, rows, view) {
    this.answer = answer;
    this.view = view;
    this.drawGroups(answer.settings);
    const { runs, base } = this.tableQuery("");
    this.report.href = api.compareReportUrl({ runs, base });
    if (this.tablesOf !== runs) {
      this.tablesOf = runs;
      const named = () => ({ runs, base });
      fill(this.tables, tableItems("compare", named, "All values"), tableItems("settings", named, "All settings"));
    }
    const all = columnsFor(rows, answer.settings, answer.rows.map(({ run }) => run));
    const shown = shownColumns(all, rows, view.columns);
    const key = JSON.stringify([all.map(({ id }) => id), shown.map(({ id }) => id)]);
    if (key === this.drawn) return shown;
    this.drawn = key;
    const ids = shown.map(({ id }) => id);
    const focused = document.activeElement?.dataset.column;
    fill(
      this.boxes,
      h("legend", {}, "Columns"),
      all.map(({ id, label, of }) =>
        h(
          "label",
          {},
          h("input", {
            type: "checkbox",
            checked: ids.includes(id),
            "data-column": id,
            onchange: (event) => {
              const next = event.target.checked ? [...ids, id] : ids.filter((one) => one !== id);
              const text = all.map((column) => column.id).filter((one) => next.includes(one)).join(",");
              setQuery({ columns: text || NO_COLUMNS });
            },
          }),
          of ? `${of}: ${label.toLowerCase()}` : label,
        ),
      ),
    );
    if (focused) [...this.boxes.querySelectorAll("input")].find((box) => box.dataset.column === focused)?.focus();
    return shown;
  }

  drawGroups(settings) {
    const first = GROUPED_FIRST.filter((name) => settings.some((one) => one.name === name && differs(one)));
    const others = settings.filter(differs).map(({ name }) => name);
    const names = [...new Set([...first, ...others])];
    const key = JSON.stringify([names, this.view.group]);
    if (key === this.drawnGroups) return;
    this.drawnGroups = key;
    fill(
      this.groups,
      h("option", { value: "" }, "Group repeats"),
      h("option", { value: EACH }, "Every run"),
      names.map((name) => h("option", { value: name }, `Group by ${settingName(name)}`)),
    );
    this.groups.value = this.view.group;
  }

  /** Query of an exported table. It uses ids, because a name refers to the newest run of that name. */
  tableQuery(format) {
    const ids = this.answer.rows.map((row) => row.run);
    const { group } = this.view;
    const grouping = group === EACH ? { repeats: EACH } : group ? { group } : {};
    return { runs: ids.join(","), base: ids[0], format, ...grouping };
  }

  permanentLink() {
    const { runs, base } = this.tableQuery("");
    const link = new URL("/compare", location.origin);
    for (const [name, value] of Object.entries({ ...store.get().query, runs, base }))
      link.searchParams.set(name, value);
    return link.href.replaceAll("%2C", ",");
  }

  async exportCsv() {
    if (!this.answer) return;
    try {
      download("vramscope-compare.csv", await api.compareTable(this.tableQuery("csv")), "text/csv");
    } catch (error) {
      this.onProblem(error);
    }
  }
}
