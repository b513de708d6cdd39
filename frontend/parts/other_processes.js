/** Other processes on a device: who they are, and their memory. */

import { h } from "vramscope/dom.js";
import { bytes, clock, isKnown } from "vramscope/format.js";
import { namesOthers } from "vramscope/parts/oom_verdict.js";

const MANAGERS = { slurm: "Slurm", kubernetes: "Kubernetes", torchrun: "torchrun", mpi: "MPI" };

/** What is known of a process besides its command: user, job, pod and container. */
function details(row) {
  return [
    isKnown(row.rank_of_run) && `rank ${row.rank_of_run} of this run`,
    row.user && `user ${row.user}`,
    row.job && `${MANAGERS[row.manager] ?? row.manager} job ${row.job}${row.job_name ? ` (${row.job_name})` : ""}`,
    row.pod && `pod ${row.pod}`,
    row.container && `container ${row.container}`,
  ].filter(Boolean);
}

/** Name of a process, in the first column of a table. */
function nameCell(row) {
  const more = details(row);
  return h(
    "th",
    { scope: "row" },
    row.command ? h("code", {}, row.command) : h("span", { class: "muted" }, "name unknown"),
    h("span", { class: "below" }, [`pid ${row.pid}`, ...more].join(", ")),
  );
}

/** Values that the panel of a run shows. The page draws it again when one of them changes. */
export const othersKey = (run, { rank, device }) =>
  run.other_processes?.filter((row) => row.rank === rank && row.device === device) ?? null;

/** A process is reported again only when its memory changes: until it leaves, the newest report is no end. */
const seen = ({ on_device: isThere, first_seconds: first, last_seconds: last }) =>
  isThere ? `from ${clock(first)} on` : `${clock(first)} to ${clock(last)}`;

/** Card with a table of processes: one row for each, with its name and the cells that `cellsOf` makes. */
function card(kind, rows, titles, cellsOf, words = null) {
  const head = [h("th", {}, "process"), titles.map((title) => h("th", { class: "number" }, title))];
  return h(
    "section",
    { class: kind, "data-others": "" },
    h("header", {}, h("h2", {}, "Other processes on the device"), h("span", { class: "muted" }, "by NVML")),
    words && h("p", { class: "pad muted" }, words),
    h(
      "div",
      { class: "scroll", tabindex: "0" },
      h(
        "table",
        { class: "plain other-processes" },
        h("thead", {}, h("tr", {}, head)),
        h(
          "tbody",
          {},
          rows.map((row) => h("tr", {}, nameCell(row), cellsOf(row))),
        ),
      ),
    ),
  );
}

/** Panel on the page of a run: the processes that were on the chosen device. Null if there was none. */
export function othersPanel(run, place) {
  const rows = othersKey(run, place);
  if (!rows?.length) return null;
  const titles = [run.state === "running" ? "uses" : "last reported", "highest", "seen"];
  return card("card wide", rows, titles, (row) => [
    h("td", { class: "number" }, row.on_device ? bytes(row.used_bytes) : "left"),
    h("td", { class: "number" }, bytes(row.peak_bytes)),
    h("td", { class: "number muted" }, seen(row)),
  ]);
}

/** Table on the page of an error: what each process had, and what it had up to a minute before. */
export function othersAtError(error) {
  const { neighbours } = error;
  const words = namesOthers(error) ? null : error.neighbours_words;
  if (!neighbours?.length) return null;
  const cellsOf = (row) => [
    h("td", { class: "number" }, bytes(row.used_bytes)),
    h(
      "td",
      { class: "number muted" },
      bytes(row.before_bytes),
      isKnown(row.before_seconds) && h("span", { class: "below" }, `${row.before_seconds} s earlier`),
    ),
  ];
  return card("card", neighbours, ["at the error", "before"], cellsOf, words);
}
