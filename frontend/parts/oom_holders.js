/** Holders of memory at an error, by category, source line and module. Also the stack and the error message. */

import { exportLink } from "vramscope/api.js";
import { h } from "vramscope/dom.js";
import { bytes, categoryName, count, isKnown, percent, seconds } from "vramscope/format.js";
import { known } from "vramscope/parts/ui.js";

const OWNERS = ["parameters", "gradients", "optimizer", "buffers", "other models"];
const COLOURS = {
  "other models": "workspaces",
  "activations, batch, temporaries": "activations",
  "used by tensors": "allocated",
  "reserved, not used": "usable",
  "this process outside PyTorch": "other",
  "other processes": "retries",
  "unknown owner, not PyTorch": "other",
};

export function holders(error, run) {
  return h(
    "div",
    { class: "panels oom-panels" },
    deviceMemory(error),
    h("div", { class: "oom-column" }, error.by_site?.length ? linesTable(error, run) : noLines(error), modulesTable(error)),
  );
}

/** Device memory by category: a bar and a table. */
function deviceMemory({ by_category: rows, message }) {
  const total = rows.reduce((sum, row) => sum + row.bytes, 0);
  const role = (row) => COLOURS[row.name] ?? (OWNERS.includes(row.name) ? row.name : null);
  if (!rows.length)
    return h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Device memory")),
      h("p", { class: "pad muted" }, "unknown: the device could not be read"),
    );
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "Device memory"), h("span", { class: "muted" }, bytes(message.total_bytes))),
    h(
      "div",
      { class: "pad" },
      h(
        "div",
        {
          class: "oom-card",
          role: "img",
          "aria-label": rows.map((row) => `${categoryName(row.name)} ${bytes(row.bytes)}`).join(", "),
        },
        rows.map((row) =>
          h("span", {
            class: "part",
            title: `${categoryName(row.name)}: ${bytes(row.bytes)}`,
            style: {
              "flex-grow": String(row.bytes / total),
              "--colour": role(row) ? `var(--role-${role(row)})` : "transparent",
            },
          }),
        ),
      ),
      h(
        "table",
        { class: "plain oom-list" },
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              h(
                "th",
                { scope: "row" },
                h("span", {
                  class: "swatch",
                  style: { "--colour": role(row) ? `var(--role-${role(row)})` : "transparent" },
                }),
                categoryName(row.name),
              ),
              h("td", { class: "number" }, bytes(row.bytes)),
              h("td", { class: "number muted" }, percent(row.bytes / total)),
            ),
          ),
        ),
      ),
    ),
  );
}

function linesTable({ by_site: rows, by_site_words: why, window }, run) {
  const most = Math.max(...rows.map((row) => row.bytes), 1);
  return h(
    "section",
    { class: "card" },
    h(
      "header",
      {},
      h("h2", {}, "By line of code"),
      window &&
        h(
          "a",
          { href: `/runs/${encodeURIComponent(run)}/anatomy?recording=${encodeURIComponent(window)}` },
          "open the recording",
        ),
    ),
    h(
      "div",
      { class: "scroll oom-scroll", tabindex: "0" },
      h(
        "table",
        { class: "plain oom-list" },
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              h(
                "th",
                { scope: "row" },
                row.file
                  ? h(
                      "code",
                      { title: `${row.file}:${row.line} in ${row.function}` },
                      `${row.file.split("/").at(-1)}:${row.line}`,
                    )
                  : h("span", { class: "muted" }, row.function ?? "no source line known"),
                row.category && h("span", { class: "below" }, categoryName(row.category)),
                bar(row.bytes / most, row.category),
              ),
              h("td", { class: "number" }, bytes(row.bytes), h("span", { class: "below" }, `${count(row.count)} ×`)),
            ),
          ),
        ),
      ),
    ),
    why && h("p", { class: "pad muted" }, why),
  );
}

function noLines({ by_site_words: why }) {
  return h(
    "section",
    { class: "card", "data-sites": "unknown" },
    h("header", {}, h("h2", {}, "By line of code")),
    h("p", { class: "pad muted" }, why),
  );
}

function modulesTable({ by_module: rows }) {
  if (!rows.length) return null;
  const most = Math.max(...rows.map((row) => row.bytes));
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "By module"), h("span", { class: "muted" }, "weights, gradients and state")),
    h(
      "div",
      { class: "scroll oom-scroll", tabindex: "0" },
      h(
        "table",
        { class: "plain oom-list" },
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              h(
                "th",
                { scope: "row" },
                h("code", {}, row.module),
                h(
                  "span",
                  { class: "oom-bar" },
                  OWNERS.map(
                    (name) =>
                      row[name] &&
                      h("span", {
                        title: `${name}: ${bytes(row[name])}`,
                        style: {
                          width: `${((row[name] / most) * 100).toFixed(2)}%`,
                          "--colour": `var(--role-${COLOURS[name] ?? name})`,
                        },
                      }),
                  ),
                ),
              ),
              h("td", { class: "number" }, bytes(row.bytes)),
            ),
          ),
        ),
      ),
    ),
  );
}

const bar = (share, category) =>
  h(
    "span",
    { class: "oom-bar" },
    h("span", {
      style: {
        width: `${(share * 100).toFixed(2)}%`,
        "--colour": `var(--role-${COLOURS[category] ?? (OWNERS.includes(category) || category === "activations" ? category : "allocated")})`,
      },
    }),
  );

export function stackPanel({ stack, node, phase }) {
  const frame = ({ file, line, function: name, own }) =>
    h(
      "li",
      { class: own ? "own" : "" },
      h("code", {}, `${file}:${line}`),
      h("span", { class: "muted" }, ` in ${name}`),
    );
  const folded = (frames) =>
    h(
      "li",
      { class: "folded" },
      h(
        "details",
        {},
        h(
          "summary",
          { class: "muted" },
          frames.length === 1 ? "1 frame of a library" : `${count(frames.length)} frames of libraries`,
        ),
        h("ol", {}, frames.map(frame)),
      ),
    );
  const frames = groupedFrames(stack).map((run) => (run[0].own ? run.map(frame) : folded(run)));
  return h(
    "section",
    { class: "card" },
    h(
      "header",
      {},
      h("h2", {}, "Where it happened"),
      h("span", { class: "muted" }, [phase, node].filter(Boolean).join(" · ")),
    ),
    frames.length
      ? h("ol", { class: "oom-stack" }, frames)
      : h("p", { class: "pad muted" }, "no Python ran on that thread"),
  );
}

/** Groups neighbouring frames of one kind: the user's, or those of libraries. */
function groupedFrames(stack) {
  const runs = [];
  for (const frame of stack) {
    if (runs.at(-1)?.[0].own === frame.own) runs.at(-1).push(frame);
    else runs.push([frame]);
  }
  return runs;
}

export function words({ record, message, settings, neighbours, techniques, notes, seconds: written }) {
  const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  return h(
    "section",
    { class: "card" },
    h(
      "header",
      {},
      h("h2", {}, "Error message"),
      h("span", { class: "spring" }),
      h("a", { class: "button small", href: exportLink(record), download: true }, "Export as one HTML file"),
    ),
    h(
      "div",
      { class: "pad" },
      message.text
        ? h("pre", { class: "oom-words" }, message.text)
        : h(
            "p",
            { class: "muted" },
            "Not received: the error was caught, or the process ended first. Numbers are from the allocator.",
          ),
      h(
        "dl",
        { class: "facts" },
        fact("allocator settings", settings ? h("code", {}, settings) : "the defaults"),
        !neighbours?.length && fact("other processes", neighbours === null ? known("unknown") : "none"), // else in a table
        techniques.length > 0 && fact("trained with", techniques.join(", ")),
        isKnown(written) && fact("record", `written by the agent in ${seconds(written)}`),
        notes.length > 0 && fact("notes", notes.join(" · ")),
      ),
    ),
  );
}
