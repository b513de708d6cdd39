/** In what compared runs differ: settings and surroundings, one column a run. */

import { h } from "vramscope/dom.js";
import { setQuery } from "vramscope/store.js";

/** `differences`: [{name, values: [one a run]}]; `all`: also those that are the same in all. */
export function whatDiffers(differences, rows, { all, colourOf }) {
  const same = (a, b) => JSON.stringify(a ?? null) === JSON.stringify(b ?? null);
  const differing = differences.filter(({ values }) => values.some((value) => !same(value, values[0])));
  const shown = all ? differences : differing;
  const press = (label, on, diff) => h("button", { type: "button", "aria-pressed": String(on), onclick: () => setQuery({ diff }) }, label);
  const head = rows.map((row, position) => h("th", { scope: "col" }, h("span", { class: "swatch marker", style: { "--swatch": colourOf(position) } }), " ", row.name));
  const line = ({ name, values }) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value, i) => h("td", { class: i && !same(value, values[0]) ? "differs" : null }, settingText(name, value))));
  return [
    h("header", {}, h("h2", {}, "What differs"), h("span", { class: "spring" }), (differences.length > differing.length || all) && h("div", { class: "segmented", role: "group" }, press("Differences only", !all, null), press("All", all, "all"))),
    shown.length === 0
      ? h("p", { class: "pad muted" }, "These runs sent the same settings.")
      : h("div", { class: "scroll", tabindex: "0" }, h("table", { class: "plain differences" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Setting"), head)), h("tbody", {}, shown.map(line)))),
  ];
}

function settingText(name, value) {
  if (value === undefined || value === null) return h("span", { class: "muted" }, name.startsWith("config.") ? "not set" : "unknown");
  if (value === "") return h("span", { class: "muted" }, name === "allocator_settings" ? "defaults" : "empty");
  return typeof value === "string" ? value : JSON.stringify(value);
}
