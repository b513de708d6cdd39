/** Environment and configuration of a run, and its events. */

import { h } from "vramscope/dom.js";
import { bytes, clock, count, stepCount, isKnown, dateTime } from "vramscope/format.js";
import { jobFacts } from "vramscope/parts/cluster_jobs.js";
import { known } from "vramscope/parts/ui.js";

const fact = (name, value) =>
  value === undefined || value === "" || (Array.isArray(value) && value.length === 0)
    ? []
    : [h("dt", {}, name), h("dd", {}, value === null ? known("unknown") : value)];

/** Values that `whoPanel` shows. The page draws the panel again when one of them changes. */
export function whoKey(run, rankNumber) {
  const rank = run.ranks.find((candidate) => candidate.rank === rankNumber) ?? run.ranks[0];
  return [
    rank && { ...rank, last_seen_seconds: 0, steps: 0, clock_skew_seconds: 0 },
    run.config,
    run.command,
    run.dropped_samples,
    run.foreign_reset_steps,
    run.lower_bound_steps,
    run.ranks.length,
  ];
}

export function whoPanel(run, rankNumber) {
  const rank = run.ranks.find((candidate) => candidate.rank === rankNumber) ?? run.ranks[0];
  const config = Object.entries(run.config ?? {});
  const isOnGpu = rank?.devices.some((device) => device.index >= 0) ?? false;
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, run.ranks.length > 1 ? `Environment: rank ${rank?.rank}` : "Environment")),
    h(
      "div",
      { class: "pad" },
      rank &&
        h(
          "div",
          { class: "fact-group" },
          h(
            "dl",
            { class: "facts" },
            fact("host", `${rank.host}, pid ${rank.pid}`),
            jobFacts(rank).map(([name, value]) => fact(name, value)),
            rank.devices.map((device) =>
              fact(device.index < 0 ? "device" : `GPU ${device.index}`, [
                device.name,
                isKnown(device.total_bytes) ? `, ${bytes(device.total_bytes)}` : "",
                device.uuid && h("div", { class: "muted" }, device.uuid),
                device.emulated && h("div", { class: "muted" }, "emulated: memory is exact, timing is not meaningful"),
              ]),
            ),
            fact("torch", [rank.torch, rank.cuda ? `, CUDA ${rank.cuda}` : rank.hip ? `, HIP ${rank.hip}` : ", no CUDA"]),
            isOnGpu && fact("driver", rank.driver),
            fact("python", rank.python),
            isOnGpu &&
              fact(
                "allocator",
                run.allocator_settings === ""
                  ? "defaults"
                  : run.allocator_settings && h("code", {}, run.allocator_settings),
              ),
            fact("git commit", run.git_commit && h("code", {}, run.git_commit)),
            isKnown(rank.clock_skew_seconds) && Math.abs(rank.clock_skew_seconds) > 0.5
              ? fact(
                  "clock",
                  `${Math.abs(rank.clock_skew_seconds).toFixed(1)} s ${rank.clock_skew_seconds > 0 ? "ahead of" : "behind"} the server`,
                )
              : [],
            fact(
              "lost samples",
              isKnown(run.dropped_samples)
                ? run.dropped_samples > 0
                  ? `${count(run.dropped_samples)} (buffer full)`
                  : "none"
                : null,
            ),
            run.foreign_reset_steps > 0 ? fact("peak counters", resetWords(run)) : [],
          ),
        ),
      run.command?.length > 0 &&
        h(
          "div",
          { class: "fact-group" },
          h("h3", {}, "Command"),
          h("pre", { class: "command" }, run.command.join(" ")),
        ),
      h(
        "div",
        { class: "fact-group" },
        h("h3", {}, "Config"),
        config.length
          ? h(
              "div",
              { class: "config scroll" },
              h(
                "dl",
                { class: "facts" },
                config.map(([key, value]) => [h("dt", {}, key), h("dd", {}, value === null ? "None" : String(value))]),
              ),
            )
          : h("p", { class: "muted" }, "None. Set with ", h("code", {}, "attach(..., config={...})"), "."),
      ),
    ),
  );
}

/** Resets of the peak counters by other code, and their effect on the peaks. */
function resetWords({ foreign_reset_steps: resets, lower_bound_steps: bounds }) {
  const where = `reset by other code in ${stepCount(resets)}: `;
  if (!bounds) return `${where}peaks are still exact`;
  return `${where}${bounds < resets ? `in ${count(bounds)} of them outside PyTorch's functions, whose` : "outside PyTorch's functions:"} peaks are lower bounds`;
}

const KINDS = {
  resumed: ["resumed", "the run resumed in a new process"],
  out_of_memory: ["out of memory", "an allocation failed"],
  notice: ["notice", null],
  tracker: ["tracker", null],
  checkpoint: ["checkpoint", "made by the framework"],
  checkpoint_loaded: ["checkpoint loaded", "by the framework"],
  exception: ["exception", "ended the run"],
  cell_error: ["a cell failed", "the run resumed"],
};

export function eventsPanel(run) {
  const events = [...(run.events ?? [])].sort((a, b) => b.time_seconds - a.time_seconds);
  const first = { time_seconds: run.started_seconds, words: "started" };
  const last =
    run.state === "running" ? null : { time_seconds: run.ended_seconds ?? run.last_seen_seconds, words: run.state };
  return h(
    "section",
    { class: "card" },
    h("header", {}, h("h2", {}, "Events"), h("span", { class: "muted" }, events.length ? count(events.length) : "")),
    h(
      "div",
      { class: "events", tabindex: "0" },
      h(
        "ul",
        {},
        last && item(last.time_seconds, [h("span", { class: "kind" }, last.words)], run),
        events.map((event) => item(event.time_seconds, eventWords(event, run), run)),
        item(first.time_seconds, [h("span", { class: "kind" }, first.words)], run),
      ),
    ),
  );
}

/** A text of which the last word may be the address of a page. */
function linked(text) {
  const [, before, address] = /^(.*?)(https?:\/\/\S+)?$/s.exec(text ?? "");
  return [before, address && h("a", { href: address, rel: "noopener noreferrer" }, address)];
}

function item(seconds, words, run) {
  return h(
    "li",
    {},
    h(
      "time",
      { class: "muted tabular", title: dateTime(seconds) },
      seconds - run.started_seconds > 86400 ? dateTime(seconds) : clock(seconds),
    ),
    h("div", { class: "what" }, words),
  );
}

/** Events that carry the number of finished steps, and happen in the next one. */
const IN_A_STEP = ["out_of_memory", "oom_message", "oom_bystander"];
const OOM_WORDS = {
  out_of_memory: "out of memory",
  oom_message: "out of memory: error message",
  oom_survived: "survived an out-of-memory error",
  oom_bystander: "another rank ran out of memory: state of this one",
};

function eventWords(event, run) {
  const [name, meaning] = KINDS[event.kind] ?? [event.kind.replaceAll("_", " "), null];
  const step = isKnown(event.step) ? event.step + IN_A_STEP.includes(event.kind) : null;
  const where = [
    run.world_size > 1 && isKnown(event.rank) ? `rank ${event.rank}` : null,
    isKnown(step) ? `step ${count(step)}` : null,
  ]
    .filter(Boolean)
    .join(", ");
  const data =
    event.kind === "cell_error"
      ? `${event.data.error_type}: ${event.data.error_line}`
      : event.kind === "exception"
        ? `${event.data.error_type} at ${event.data.file}:${event.data.line}, in ${event.data.function}`
        : Object.entries(event.data ?? {})
          .map(([key, value]) => `${key}: ${isKnown(value) && key.endsWith("_bytes") ? bytes(value) : value}`)
          .join(", ");
  if (event.data?.record && event.kind in OOM_WORDS) {
    const { record, asked_bytes: asked, text } = event.data;
    const more = [isKnown(asked) && `requested ${bytes(asked)}`, text?.split("\n")[0]].filter(Boolean).join(", ");
    return [
      h(
        "a",
        { class: "kind", href: `/runs/${encodeURIComponent(run.run_id)}/oom?error=${encodeURIComponent(record)}` },
        OOM_WORDS[event.kind],
      ),
      where && h("span", { class: "muted" }, ` · ${where}`),
      more && h("div", { class: "muted" }, more),
    ];
  }
  if (event.kind === "tracker") {
    return [h("span", { class: "kind" }, name), h("div", { class: "muted" }, linked(event.data.text))];
  }
  return [
    h("span", { class: "kind" }, name),
    where && h("span", { class: "muted" }, ` · ${where}`),
    (data || meaning) && h("div", { class: "muted" }, data || meaning),
  ];
}
