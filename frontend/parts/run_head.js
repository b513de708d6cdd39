/** Head of a run: name, state, device and baseline. Also the banner of how it ended. */

import { copyButton, h, setText } from "vramscope/dom.js";
import { called, clock, count, duration, isKnown, dateTime, partOf, stepCount } from "vramscope/format.js";
import { noteInHead } from "vramscope/parts/note_editor.js";
import { peakDelta } from "vramscope/parts/peak_bound.js";
import { stateBadge } from "vramscope/parts/run_state.js";
import { techniqueChips } from "vramscope/parts/techniques.js";

/**
 * Head of a run's pages. `tab`: current page: "memory", "leaks", "operations", "anatomy", "fragmentation" or "oom".
 * Without `onBaseline` there is no button for the baseline. `deletion`: a RunDeletion.
 */
export function headline(run, { base, onBaseline, onNote, share, tab, deletion }) {
  const device = run.device ?? (run.ranks[0]?.devices.length ? null : "no CUDA device");
  const ranksReporting = run.world_size > 1 ? `${partOf(run.ranks_reporting, run.world_size)} ranks reporting` : null;
  return [
    h(
      "div",
      { class: "page-head" },
      h(
        "div",
        { class: "run-title" },
        h("h1", {}, run.name),
        stateBadge(run.state, { badge: true }),
        run.baseline && h("span", { class: "chip baseline" }, "baseline"),
        base &&
          h(
            "a",
            {
              class: "chip",
              href: `/compare?runs=${run.run_id},${base.run_id}&base=${base.run_id}`,
              title: `compare with the baseline ${base.name}`,
            },
            "peak vs baseline ",
            peakDelta(run, base),
          ),
        run.tags.map((tag) => h("a", { class: "chip tag", href: `/runs?tag=${encodeURIComponent(tag)}` }, tag)),
      ),
      h("span", { class: "spring" }),
      headActions(
        onBaseline &&
          h(
            "button",
            {
              class: "button small",
              type: "button",
              onclick: onBaseline,
              title: "baseline for the deltas of this project (b)",
            },
            run.baseline ? "Unset baseline" : "Make baseline",
          ),
        !run.note &&
          h("button", { class: "button small", type: "button", onclick: onNote, title: "add a note (n)" }, "Add note"),
        h("a", { class: "button small", href: `/compare?runs=${run.run_id}` }, "Compare…"),
        copyButton("Copy link", share, { title: "The link opens this view." }),
        deletion.button,
      ),
      deletion.problem,
      h(
        "div",
        { class: "run-sub" },
        h("span", {}, h("a", { href: `/runs?project=${encodeURIComponent(run.project)}` }, run.project)),
        device &&
          h("span", { title: emulated(run) ? "Memory is exact. Timing and losses are not meaningful." : null }, device),
        run.framework &&
          h(
            "span",
            {},
            {
              loop: "plain loop",
              huggingface: "Hugging Face Trainer",
              lightning: "Lightning",
              accelerate: "Accelerate",
            }[run.framework] ?? run.framework,
          ),
        h(
          "span",
          { class: "tabular" },
          run.steps > 0 ? `step ${count(run.steps)}` : run.state === "running" ? "no step yet" : "no step",
        ),
        h("span", { class: "tabular", "data-age": true }),
        ranksReporting && h("span", {}, ranksReporting),
        h("span", { class: "tabular" }, `started ${dateTime(run.started_seconds)}`),
      ),
      noteInHead(run, onNote),
      techniqueChips(run.techniques),
      tabs(run, tab),
    ),
  ];
}

/** Buttons of the head. On a narrow screen they are in a menu (run.css). */
function headActions(...buttons) {
  const list = h("div", { class: "head-buttons", id: "head-buttons" }, buttons);
  const toggle = h(
    "button",
    {
      class: "button small head-menu",
      type: "button",
      "aria-expanded": "false",
      "aria-controls": "head-buttons",
      onclick: () => toggle.setAttribute("aria-expanded", String(toggle.getAttribute("aria-expanded") !== "true")),
    },
    "Actions",
  );
  return h("div", { class: "head-actions" }, toggle, list);
}

const emulated = (run) => run.ranks.some((rank) => rank.devices.some((device) => device.emulated));

/** Tab, path, label, what its count counts (one, several), count, and whether a count is bad. */
const TABS = [
  ["memory", "/memory", "Memory"],
  ["leaks", "/leaks", "Leaks", ["found", "found"], (run) => run.leak_count, true],
  ["operations", "/operations", "Operations", ["profile", "profiles"], (run) => run.profiles || null],
  ["anatomy", "/anatomy", "Anatomy", ["recording", "recordings"], (run) => run.recordings || null],
  ["fragmentation", "/fragmentation", "Fragmentation", ["recording", "recordings"], (run) => run.recordings || null],
  ["oom", "/oom", "Out of memory", ["error", "errors"], (run) => run.oom_records || run.out_of_memory_count || null, true],
];

function tabs(run, current) {
  const to = `/runs/${encodeURIComponent(run.run_id)}`;
  return h(
    "nav",
    { class: "tabs", "aria-label": "Views of this run" },
    TABS.map(([name, path, words, units, number, bad]) => {
      const many = number?.(run);
      const unit = units?.[many === 1 ? 0 : 1];
      return h(
        "a",
        { href: to + path, "aria-current": name === current ? "page" : null },
        words,
        isKnown(many) &&
          h(
            "span",
            { class: `tab-count${bad && many ? " bad" : ""}`, title: `${many} ${unit}` },
            many,
            h("span", { class: "offscreen" }, ` ${unit}`),
          ),
      );
    }),
  );
}

/** Updates the run time. Called every second; writes only changes. */
export function drawAge(head, { started_seconds: started, ended_seconds: ended, last_seen_seconds: seen, state }) {
  const place = head.querySelector("[data-age]");
  if (!place) return;
  const until = state === "running" ? Date.now() / 1000 : (ended ?? seen);
  setText(place, `${state === "running" ? "running for" : "ran for"} ${duration(until - started)}`);
}

/** Link to the explanation of an out-of-memory error. */
const whyLink = (run) =>
  run.oom_records > 0 &&
  h("a", { class: "nowrap", href: `/runs/${encodeURIComponent(run.run_id)}/oom` }, "Cause and remedies");

/** Source line of the exception that ended the run, and the last finished step. Null if it is unknown. */
function raisedAt(run) {
  const events = run.events ?? [];
  const at = events.findLastIndex(({ kind, data }) => kind === "exception" && data.error_type === run.error_type);
  if (at < 0 || events.slice(at).some(({ kind }) => kind === "resumed")) return null; // it ended an attempt before
  const event = events[at];
  const { file, line, function: name } = event.data;
  if (!file || !name) return null;
  const place = `${file}:${line}`;
  return h(
    "span",
    { class: "raised" },
    h("code", { title: place }, `${file.split("/").at(-1)}:${line}`),
    h("span", { class: "muted" }, ` in ${called(name)}, after ${stepCount(event.step)} `),
    copyButton("Copy", () => place, { title: place }),
  );
}

/** Banner for a failed or lost run. Null otherwise. */
export function endBanner(run) {
  if (run.state === "failed") {
    return h(
      "div",
      { class: "banner bad" },
      h("strong", {}, run.error_type ?? "Failed"),
      h("span", {}, run.error_line ?? "the exception has no message"),
      raisedAt(run),
      whyLink(run),
      run.ended_seconds && h("span", { class: "muted nowrap" }, `at ${clock(run.ended_seconds)}`),
    );
  }
  if (run.state === "lost") {
    return h(
      "div",
      { class: "banner warn" },
      h("strong", {}, `No signal since ${clock(run.last_seen_seconds)}.`),
      h("span", {}, "Killed or disconnected. If it still runs, its data arrives when it can connect."),
    );
  }
  return null;
}
