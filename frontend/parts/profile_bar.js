/** Which profile is shown, how to get another one, and what to do where there is none. */

import { h } from "vramscope/dom.js";
import { ago, bytes, percent, seconds } from "vramscope/format.js";
import { recordingWords } from "vramscope/parts/recording_bar.js";

/** `asked`: null, or seconds since 1970 when the run was asked. */
export function profileBar(profiles, { chosen, several, live, asked, onChoose, onAsk, onDelete }) {
  const wholes = profiles.filter((profile) => profile.whole);
  const coming = profiles.filter((profile) => !profile.whole);
  const shown = wholes.find((profile) => profile.profile === chosen);
  const select = wholes.length > 0 && h("select", { "aria-label": "Profile", onchange: (event) => onChoose(event.target.value) }, wholes.map((profile) => h("option", { value: profile.profile }, recordingWords(profile, several))));
  if (select) select.value = chosen;
  return h("div", { class: "view-bar recording-bar" },
    select && h("label", {}, h("span", { class: "muted" }, "Profile"), select),
    shown && h("span", { class: "muted" }, `recorded ${ago(shown.received_seconds, Date.now() / 1000)}`),
    coming.map((profile) => h("span", { class: "chip", "data-coming": profile.profile, title: "it is sent slowly, so that it does not delay the samples" }, `${recordingWords(profile, several)}: ${percent(profile.pieces_received / profile.pieces, 0)} has come`)),
    h("span", { class: "spring" }),
    shown && traceLink(shown),
    shown && h("button", { class: "button small quiet", type: "button", onclick: () => onDelete(chosen) }, "Delete"),
    live && (asked
      ? h("span", { class: "muted", role: "status", "data-asked": true }, waiting(coming))
      : [
        h("button", { class: "button small", type: "button", onclick: () => onAsk(false), title: "the run profiles its next two steps, with Python stacks and shapes: it is slower in them, and stands still for a moment afterwards" }, "Profile the next steps"),
        h("button", { class: "button small quiet", type: "button", onclick: () => onAsk(true), title: "and PyTorch's whole trace with it, to open in Perfetto" }, "… with the trace"),
      ]));
}

function waiting(coming) {
  return h("span", {}, h("progress", { "aria-label": "the profile is on its way" }), coming.length ? " it is coming…" : " asked; the next steps are profiled, then summed up beside the training…");
}

function traceLink({ profile, trace }) {
  if (trace === null) return null;
  if (!trace.whole) return h("span", { class: "chip" }, "the trace is coming");
  return h("a", { class: "button small quiet", href: `/api/v1/profiles/${encodeURIComponent(profile)}/trace`, download: true, title: "Chrome's JSON, gzipped: open it at ui.perfetto.dev or chrome://tracing" }, `Trace (${bytes(trace.bytes)})`);
}

/** What the profile cost the training, in words. */
export function costWords({ cost, steps }) {
  const slower = cost.step_before !== null && cost.step_within !== null ? Math.max(0, cost.step_within - cost.step_before) * steps : null;
  const parts = [slower !== null && `${seconds(slower)} of slower steps`, `${seconds(cost.opening)} to open it`, `${seconds(cost.closing)} to close it`].filter(Boolean);
  const held = (slower ?? 0) + cost.opening + cost.closing;
  return { held, text: `${parts.join(", ")}; ${seconds(cost.packing)} of CPU on a thread beside it` };
}

/** Said in the place of the figures. */
export function nothingProfiled(run, profiles) {
  const coming = profiles.length > 0;
  const live = run.state === "running";
  const words = coming
    ? "A profile is on its way. This page shows it when it is whole."
    : live
      ? "No step has been profiled yet. “Profile the next steps” asks the run for its next two; it is slower in them, and sends them when it has time. By itself a run profiles one step once that takes less than a hundredth of its time: a run of a few seconds ends before, unless its script says session.profile() to what agent.attach() gave it."
      : "This run has ended, and none of its steps was profiled. While a run trains, this page can ask it for a profile; by itself it profiles a step once that takes less than a hundredth of its time, unless it ends before or VRAMSCOPE_PROFILE=0. In a run of a few seconds, session.profile() on what agent.attach() gives asks for the next two steps.";
  return h("section", { class: "card empty" }, h("h2", {}, coming ? "A profile is coming" : "No profile"), h("p", {}, words));
}
