/**
 * Table of the settings of compared runs: configuration, allocator and environment. All, or only differences;
 * searchable.
 */

import { fill, h, setText } from "vramscope/dom.js";
import { bytes } from "vramscope/format.js";
import { setQuery } from "vramscope/store.js";

const GROUPS = [
  ["Run", (name) => ["project", "tags", "techniques"].includes(name)],
  ["Configuration", (name) => name.startsWith("config.")],
  ["Allocator", (name) => name === "allocator_settings"],
  ["Environment", () => true],
];

const MANY_RUNS = 8; // more columns than this cannot be read side by side
const MOST_VALUES = 12;

const same = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);
const differs = ({ values }) => values.some((value) => !same(value, values[0]));

/** Rows that contain every word of `text` in their name or values. */
export function matching(settings, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return settings.filter(({ name, values }) => {
    const haystack = [name, ...values.map((value) => settingText(name, value))].join("\n").toLowerCase();
    return words.every((word) => haystack.includes(word));
  });
}

export class SettingDifferences {
  constructor() {
    // created once: a button that is replaced under the pointer loses the click and the focus
    this.differing = h("button", { type: "button", onclick: () => setQuery({ diff: null }) });
    this.every = h("button", { type: "button", onclick: () => setQuery({ diff: "all" }) });
    this.kinds = h(
      "div",
      { class: "segmented", role: "group", "aria-label": "Which settings" },
      this.differing,
      this.every,
    );
    this.search = h("input", { type: "search", placeholder: "Find a setting", "aria-label": "Find a setting" });
    this.search.addEventListener("input", () => setQuery({ find: this.search.value.trim() || null }));
    this.status = h("span", { class: "muted", role: "status" });
    this.body = h("div");
    this.element = h(
      "section",
      { class: "card settings-of-runs", hidden: true },
      h("header", {}, h("h2", {}, "Settings"), this.status, h("span", { class: "spring" }), this.search, this.kinds),
      this.body,
    );
  }

  /**
   * Draws the table. `settings`: [{name, values: [one per run]}]. `all`: include equal settings. `find`: search text.
   */
  draw(settings, rows, { all, find, colourOf }) {
    this.element.hidden = rows.length === 0;
    const alone = rows.length === 1; // a single run has no differences
    const differing = settings.filter(differs);
    const kind = all || alone ? settings : differing;
    const shown = matching(kind, find);
    if (document.activeElement !== this.search) this.search.value = find;
    this.kinds.hidden = alone;
    setText(this.differing, `Differences only (${differing.length})`);
    setText(this.every, `All settings (${settings.length})`);
    this.differing.setAttribute("aria-pressed", String(!all));
    this.every.setAttribute("aria-pressed", String(all));
    this.status.textContent = find ? `${shown.length} of ${kind.length} found` : "";
    const none = find ? "No matching setting." : "All settings are equal.";
    const many = rows.length > MANY_RUNS;
    const columns = many ? 1 : rows.length;
    const lineOf = (setting) => (many ? valuesLine : settingLine)(setting, rows);
    const name = (row, position) =>
      h(
        "th",
        { scope: "col" },
        h("span", { class: "swatch marker", style: { "--swatch": colourOf(position) } }),
        " ",
        row.name,
      );
    const head = many ? h("th", { scope: "col" }, "Values, and how many runs have them") : rows.map(name);
    fill(
      this.body,
      shown.length === 0
        ? h(
            "p",
            { class: "pad muted" },
            none,
            find && !all && !alone && matching(settings, find).length > 0 && " Equal in all runs: see All settings.",
          )
        : h(
            "div",
            { class: "scroll", tabindex: "0" },
            h(
              "table",
              { class: "plain differences" },
              h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), head)),
              grouped(shown).map((group) => body(group, columns, lineOf)),
            ),
          ),
    );
  }
}

function grouped(settings) {
  const left = new Set(settings);
  return GROUPS.map(([title, belongs]) => {
    const own = [...left].filter(({ name }) => belongs(name));
    own.forEach((one) => left.delete(one));
    return [title, own];
  }).filter(([, own]) => own.length);
}

function body([title, settings], columns, lineOf) {
  return h(
    "tbody",
    {},
    h("tr", { class: "group" }, h("th", { colspan: columns + 1, scope: "rowgroup" }, title)),
    settings.map(lineOf),
  );
}

/** A value in each run. Those that differ from the baseline's are marked. */
function settingLine({ name, values }, rows) {
  const kind = (value, at) =>
    [at && !same(value, values[0]) ? "differs" : "", value === null || value === "" ? "muted" : ""].join(" ").trim();
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, settingName(name)),
    values.map((value, at) => h("td", { class: kind(value, at) || null, "data-of": rows[at].name }, settingText(name, value))),
  );
}

/** Each value with the number of its runs, the baseline's value first. */
function valuesLine({ name, values }, rows) {
  const owners = new Map();
  values.forEach((value, at) => {
    const text = settingText(name, value);
    owners.set(text, [...(owners.get(text) ?? []), rows[at].name]);
  });
  const shown = [...owners].slice(0, MOST_VALUES);
  const left = owners.size - shown.length;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, settingName(name)),
    h(
      "td",
      { class: "values" },
      shown.map(([text, names]) =>
        h("span", { class: "chip", title: names.join(", ") }, text, h("span", { class: "muted" }, ` ${names.length}`)),
      ),
      left > 0 && h("span", { class: "muted" }, `${left} more`),
    ),
  );
}

/** Name of a setting for readers. */
export const settingName = (name) =>
  name.startsWith("config.")
    ? name.slice("config.".length)
    : name === "capacity_bytes"
      ? "capacity"
      : name.replaceAll("_", " ");

/** Value of a setting for readers. */
export function settingText(name, value) {
  if (value === undefined || value === null) return name.startsWith("config.") ? "not set" : "unknown";
  if (value === "") return name === "allocator_settings" ? "defaults" : "empty";
  if (name === "capacity_bytes") return bytes(value);
  if (Array.isArray(value)) return value.join(", ") || "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}
