/**
 * Table of the settings of compared runs: configuration, allocator and environment. All, or only differences;
 * searchable.
 */

import { fill, h, setText } from "vramscope/dom.js";
import { bytes } from "vramscope/format.js";
import { setQuery } from "vramscope/store.js";

const GROUPS = [
  ["Configuration", (name) => name.startsWith("config.")],
  ["Allocator", (name) => name === "allocator_settings"],
  ["Environment", () => true],
];

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
    const head = rows.map((row, position) =>
      h(
        "th",
        { scope: "col" },
        h("span", { class: "swatch marker", style: { "--swatch": colourOf(position) } }),
        " ",
        row.name,
      ),
    );
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
              grouped(shown).map((group) => body(group, rows.length)),
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

function body([title, settings], runs) {
  const line = ({ name, values }) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, nameText(name)),
      values.map((value, i) =>
        h(
          "td",
          {
            class:
              [i && !same(value, values[0]) ? "differs" : "", value === null || value === "" ? "muted" : ""]
                .join(" ")
                .trim() || null,
          },
          settingText(name, value),
        ),
      ),
    );
  return h(
    "tbody",
    {},
    h("tr", { class: "group" }, h("th", { colspan: runs + 1, scope: "rowgroup" }, title)),
    settings.map(line),
  );
}

const nameText = (name) =>
  name.startsWith("config.")
    ? name.slice("config.".length)
    : name === "capacity_bytes"
      ? "capacity"
      : name.replaceAll("_", " ");

function settingText(name, value) {
  if (value === undefined || value === null) return name.startsWith("config.") ? "not set" : "unknown";
  if (value === "") return name === "allocator_settings" ? "defaults" : "empty";
  if (name === "capacity_bytes") return bytes(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
