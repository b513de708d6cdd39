/** The head of a run: name, state, what it ran on, against which baseline; and how it ended. */

import { copyButton, h, setText } from "vramscope/dom.js";
import { axisTime, clock, count, isKnown, moment, ofMany } from "vramscope/format.js";
import { delta } from "vramscope/parts/pieces.js";
import { stateBadge } from "vramscope/parts/state.js";

/** `tab`: which view of the run this is: "memory", "leaks" or "fragmentation". Without `onBaseline` there is no button for it. */
export function headline(run, { base, onBaseline, share, tab }) {
  const device = run.device ?? (run.ranks[0]?.devices.length ? null : "no CUDA device");
  const of = run.world_size > 1 ? `${ofMany(run.ranks_reporting, run.world_size)} ranks reporting` : null;
  return [
    h(
      "div",
      { class: "page-head" },
      h("div", { class: "run-title" }, h("h1", {}, run.name), stateBadge(run.state, { badge: true }), run.baseline && h("span", { class: "chip baseline" }, "baseline"), base && h("a", { class: "chip", href: `/compare?runs=${run.run_id},${base.run_id}&base=${base.run_id}`, title: `compare with the baseline ${base.name}` }, "peak vs baseline ", delta(run.peak_allocated_bytes, base.peak_allocated_bytes)), run.tags.map((tag) => h("a", { class: "chip tag", href: `/runs?tag=${encodeURIComponent(tag)}` }, tag))),
      h("span", { class: "spring" }),
      onBaseline && h("button", { class: "button small", type: "button", onclick: onBaseline, title: "deltas of this project are against its baseline (b)" }, run.baseline ? "Not the baseline" : "Make baseline"),
      h("a", { class: "button small", href: `/compare?runs=${run.run_id}` }, "Compare…"),
      copyButton("Copy link", share, { title: "the link holds this very view" }),
      h("div", { class: "run-sub" },
        h("span", {}, h("a", { href: `/runs?project=${encodeURIComponent(run.project)}` }, run.project)),
        device && h("span", {}, device),
        run.framework && h("span", {}, { loop: "plain loop", huggingface: "Hugging Face Trainer", lightning: "Lightning", accelerate: "Accelerate" }[run.framework] ?? run.framework),
        h("span", { class: "tabular" }, `step ${count(run.steps)}`),
        h("span", { class: "tabular", "data-age": true }),
        of && h("span", {}, of),
        h("span", { class: "tabular" }, `started ${moment(run.started_seconds)}`)),
      tabs(run, tab),
    ),
  ];
}

function tabs(run, current) {
  const to = `/runs/${encodeURIComponent(run.run_id)}`;
  const link = (name, href, ...content) => h("a", { href, "aria-current": name === current ? "page" : null }, content);
  const found = run.leak_count;
  const words = found === 1 ? "1 leak found" : `${found} leaks found`;
  return h("nav", { class: "tabs", "aria-label": "Views of this run" },
    link("memory", to, "Memory"),
    link("leaks", `${to}/leaks`, "Leaks", isKnown(found) && h("span", { class: `tab-count${found ? " bad" : ""}`, title: words }, found, h("span", { class: "offscreen" }, " found"))),
    link("fragmentation", `${to}/fragmentation`, "Fragmentation", run.recordings > 0 && h("span", { class: "tab-count", title: `recordings: ${run.recordings}` }, run.recordings, h("span", { class: "offscreen" }, " recorded"))));
}

/** How long it has been running, or ran; called every second, writes only what is new. */
export function drawAge(head, { started_seconds: started, ended_seconds: ended, last_seen_seconds: seen, state }) {
  const place = head.querySelector("[data-age]");
  if (!place) return;
  const until = state === "running" ? Date.now() / 1000 : (ended ?? seen);
  setText(place, `${state === "running" ? "running for" : "ran for"} ${axisTime(Math.max(0, until - started))}`);
}

/** How it ended, where that is worth a banner. */
export function endBanner(run) {
  if (run.state === "failed") {
    return h("div", { class: "banner bad" }, h("strong", {}, run.error_type ?? "Failed"), h("span", {}, run.error_line ?? "the exception said nothing"), run.ended_seconds && h("span", { class: "muted nowrap" }, `at ${clock(run.ended_seconds)}`));
  }
  if (run.state === "lost") {
    return h("div", { class: "banner warn" }, h("strong", {}, `Silent since ${clock(run.last_seen_seconds)}.`), h("span", {}, "It did not say goodbye: killed, or cut off from this server. If it still runs, what it kept on disk arrives when it can send again."));
  }
  return null;
}
