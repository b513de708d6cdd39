/** Links that download a table of the server as CSV, Parquet or JSON: all rows, sizes in bytes. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";

const FORMATS = [
  ["csv", "CSV"],
  ["parquet", "Parquet"],
  ["json", "JSON"],
];
let canWrite = null; // promise: whether the server can write Parquet

const canWriteParquet = () =>
  (canWrite ??= api
    .server()
    .then(({ parquet }) => parquet)
    .catch(() => true)); // the link itself reports a problem

/** Items of a menu. `table`: name of the table; `query()`: its parameters at the time of the click; `what`: its content. */
export function tableItems(table, query, what = "") {
  const link = ([format, label]) => {
    const item = h("a", { class: "menu-item", download: true, "data-table": table }, what ? `${what} (${label})` : label);
    const point = () => (item.href = api.tableUrl(table, { format, ...query() }));
    point();
    item.addEventListener("click", point);
    return item;
  };
  const items = FORMATS.map(link);
  canWriteParquet().then((can) => {
    if (can) return;
    items[1].removeAttribute("href");
    items[1].classList.add("muted");
    fill(items[1], "Parquet: needs pyarrow on the server");
  });
  return items;
}

/** Menu "Download" of one table. */
export const tableDownload = (table, query) =>
  h(
    "details",
    { class: "menu" },
    h("summary", { class: "button small", title: "all rows, sizes in bytes" }, "Download"),
    h("div", { class: "menu-list" }, tableItems(table, query)),
  );
