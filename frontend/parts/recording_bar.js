/** Which recording is shown, how to get another one, and what to do where there is none. */

import { h } from "vramscope/dom.js";
import { ago, bytes, count, isKnown, percent } from "vramscope/format.js";
import { snippet } from "vramscope/parts/pieces.js";

/** "steps 1 – 3, the first steps" of what the agent told. */
export function recordingWords({ about, rank }, several) {
  const { first_step: first, last_step: last, reason, device } = about;
  const steps = isKnown(first) ? (first === last || !isKnown(last) ? `step ${count(first)}` : `steps ${count(first)} – ${count(last)}`) : "some steps";
  const where = [several && `rank ${rank}`, device > 0 && `GPU ${device}`].filter(Boolean);
  return [steps, reason, ...where].filter(Boolean).join(" · ");
}

export function recordingBar(recordings, { chosen, several, live, asked, onChoose, onAsk, onDelete }) {
  const wholes = recordings.filter((recording) => recording.whole);
  const coming = recordings.filter((recording) => !recording.whole);
  const shown = wholes.find((recording) => recording.recording === chosen);
  const select = wholes.length > 0 && h("select", { "aria-label": "Recording", onchange: (event) => onChoose(event.target.value) }, wholes.map((recording) => h("option", { value: recording.recording }, recordingWords(recording, several))));
  if (select) select.value = chosen;
  return h("div", { class: "view-bar recording-bar" },
    select && h("label", {}, h("span", { class: "muted" }, "Recording"), select),
    shown && h("span", { class: "muted" }, isKnown(shown.about.events) && `${count(shown.about.events)} events · `, `${bytes(shown.bytes)} · recorded ${ago(shown.received_seconds, Date.now() / 1000)}`),
    coming.map((recording) => h("span", { class: "chip", "data-coming": recording.recording, title: "it is sent slowly, so that it does not delay the samples" }, `${recordingWords(recording, several)}: ${percent(recording.pieces_received / recording.pieces, 0)} has come`)),
    h("span", { class: "spring" }),
    shown && h("button", { class: "button small quiet", type: "button", onclick: () => onDelete(chosen) }, "Delete"),
    live && (asked
      ? h("span", { class: "muted", role: "status" }, "asked; the next steps are being recorded…")
      : h("button", { class: "button small", type: "button", onclick: onAsk, title: "the run records what its allocator does in its next two steps, with the stacks of what asks for memory and of what lets go" }, "Record a window")));
}

/** Whether a rank has a CUDA device; the CPU of a run without one is device -1. */
export const hasCard = (run) => run.ranks.some((rank) => rank.devices.some(({ index }) => index >= 0));

/** Said in the place of the charts. */
export function nothingRecorded(run, recordings) {
  const hasGpu = hasCard(run);
  const coming = recordings.length > 0;
  const live = run.state === "running";
  const words = coming
    ? "A recording is on its way. This page shows it when it is whole."
    : !hasGpu
      ? "This run used no CUDA device: what is recorded is the history of PyTorch's CUDA allocator, and the CPU's allocator keeps none."
      : live
        ? "Nothing is recorded yet. “Record a window” asks the run for its next steps; it takes them along and sends them when it has time."
        : "This run has ended and recorded nothing. Runs record their first steps and a later window by themselves, unless VRAMSCOPE_WINDOWS=0.";
  return h("section", { class: "card empty" },
    h("h2", {}, coming ? "A recording is coming" : "No recording"),
    h("p", {}, words),
    hasGpu && !live && !coming && [h("p", { class: "or" }, "A snapshot file that PyTorch wrote can be asked as well:"), h("div", { class: "narrow" }, snippet("vramscope whatif snapshot.pickle"))]);
}
