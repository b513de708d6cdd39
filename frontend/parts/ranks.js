/** Table of a run's ranks with their peaks. The heat map of the ranks is in rank_map.js. */

import { h, fill } from "vramscope/dom.js";
import { ago, count, isKnown, percent } from "vramscope/format.js";
import { known, meter, sized } from "vramscope/parts/ui.js";
import { stateBadge } from "vramscope/parts/run_state.js";
import { TableSort } from "vramscope/parts/table_sort.js";
import { highest } from "vramscope/series.js";

const ROWS_EVERY_MS = 5_000;

/** Columns: label, kind, and the key that rows are sorted by. */
const COLUMNS = [
  ["Rank", "rank", ({ rank }) => rank],
  ["State", "state", ({ state }) => state],
  ["Where", "where", ({ host, devices }) => `${host} ${devices[0]?.index ?? ""}`],
  ["Peak allocated", "number peak", (rank) => rank.peak_allocated_bytes],
  ["Peak reserved", "number reserved", (rank) => rank.peak_reserved_bytes],
  ["Steps", "number steps", ({ steps }) => steps],
  ["Last seen", "number seen", (rank) => rank.last_seen_seconds],
];
const KEYS = Object.fromEntries(COLUMNS.map(([label, , key]) => [label, key]));

export class RanksPanel {
  constructor(onPick) {
    this.onPick = onPick;
    this.sort = new TableSort(() => this.draw(this.run, this.view, true));
    this.element = h("section", { class: "card ranks panels-gap", hidden: true });
    this.element.style.marginTop = "14px";
  }

  /** Draws the table again: without delay if `force` is set or a rank's state changed, else every few seconds. */
  draw(run, view, force = false) {
    const several = run.ranks.length > 1 || run.world_size > 1;
    this.element.hidden = !several;
    if (!several) return;
    Object.assign(this, { run, view });
    const key = JSON.stringify([run.ranks.map((rank) => [rank.rank, rank.state]), view.rank, view.device]);
    if (!force && key === this.key && performance.now() - this.drawnAt < ROWS_EVERY_MS) return;
    this.key = key;
    this.drawnAt = performance.now();
    const peaks = run.ranks.map((rank) => rank.peak_allocated_bytes);
    const top = highest(peaks);
    const lowest = peaks.filter(isKnown).reduce((a, b) => Math.min(a, b), Infinity);
    const spread = top > 0 && Number.isFinite(lowest) ? 1 - lowest / top : null;
    const missingRanks = [];
    if (run.ranks.length < run.world_size && run.world_size <= 1024) {
      const seen = new Set(run.ranks.map((rank) => rank.rank));
      for (let rank = 0; rank < run.world_size; rank += 1) if (!seen.has(rank)) missingRanks.push(rank);
    }
    const rows = this.sort.order(run.ranks, KEYS).map((rank) => {
      const worst = isKnown(top) && rank.peak_allocated_bytes === top && spread > 0;
      const total = rank.devices[0]?.total_bytes ?? run.capacity_bytes;
      return h(
        "tr",
        { class: [worst && "worst", rank.rank === view.rank && "selected"].filter(Boolean).join(" ") },
        h(
          "td",
          {},
          h(
            "button",
            {
              class: "button quiet small",
              type: "button",
              onclick: () => this.onPick(rank.rank),
              title: "show this rank in the charts",
            },
            `rank ${rank.rank}`,
          ),
          worst && h("span", { class: "chip", title: "highest peak of all ranks" }, "highest"),
        ),
        h("td", {}, stateBadge(rank.state)),
        h(
          "td",
          { class: "muted where" },
          `${rank.host}${rank.devices[0] && rank.devices[0].index >= 0 ? ` · GPU ${rank.devices[0].index}` : ""}`,
        ),
        h(
          "td",
          { class: "number peak" },
          sized(rank.peak_allocated_bytes),
          meter(rank.peak_allocated_bytes, total),
        ),
        h("td", { class: "number reserved" }, sized(rank.peak_reserved_bytes)),
        h("td", { class: "number steps" }, known(count(rank.steps))),
        h("td", { class: "number muted seen" }, rank.error_type ?? ago(rank.last_seen_seconds, Date.now() / 1000)),
      );
    });
    fill(
      this.element,
      h(
        "header",
        {},
        h("h2", {}, "Ranks"),
        h(
          "span",
          { class: "muted" },
          `${run.ranks.length} of ${run.world_size} reporting${spread === null ? "" : `; peaks differ by ${percent(spread)}`}`,
        ),
      ),
      missingRanks.length > 0 &&
        h(
          "p",
          { class: "pad muted" },
          `No data yet: rank${missingRanks.length > 1 ? "s" : ""} ${missingRanks.slice(0, 24).join(", ")}${missingRanks.length > 24 ? ", …" : ""}.`,
        ),
      h(
        "div",
        { class: "scroll ranks-frame" },
        h(
          "table",
          { class: "plain" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              COLUMNS.map(([label, kind]) => this.sort.head(label, kind)),
            ),
          ),
          h("tbody", {}, rows),
        ),
      ),
    );
  }
}
