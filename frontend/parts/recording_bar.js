/** Choice of a recording, a button that requests one, and text for runs without one. */

import { h } from "vramscope/dom.js";
import { ago, bytes, count, isKnown, percent } from "vramscope/format.js";
import { snippet, withCode } from "vramscope/parts/ui.js";

/** Description of a recording: "steps 1 – 3, the first steps". */
export function recordingWords({ about, rank }, several) {
  const { first_step: first, last_step: last, reason, device } = about;
  const steps = isKnown(first)
    ? first === last || !isKnown(last)
      ? `step ${count(first)}`
      : `steps ${count(first)} – ${count(last)}`
    : "some steps";
  const where = [several && `rank ${rank}`, device > 0 && `GPU ${device}`].filter(Boolean);
  return [steps, reason, ...where].filter(Boolean).join(" · ");
}

export function recordingBar(recordings, { chosen, several, live, requested, onChoose, onRequest, onDelete }) {
  const complete = recordings.filter((recording) => recording.whole);
  const coming = recordings.filter((recording) => !recording.whole);
  const shown = complete.find((recording) => recording.recording === chosen);
  const select =
    complete.length > 0 &&
    h(
      "select",
      { "aria-label": "Recording", onchange: (event) => onChoose(event.target.value) },
      complete.map((recording) => h("option", { value: recording.recording }, recordingWords(recording, several))),
    );
  if (select) select.value = chosen;
  return h(
    "div",
    { class: "view-bar recording-bar" },
    select && h("label", {}, h("span", { class: "muted" }, "Recording"), select),
    shown &&
      h(
        "span",
        { class: "muted" },
        isKnown(shown.about.events) && `${count(shown.about.events)} events · `,
        `${bytes(shown.bytes)} · recorded ${ago(shown.received_seconds, Date.now() / 1000)}`,
      ),
    coming.map((recording) =>
      h(
        "span",
        { class: "chip", "data-coming": recording.recording, title: "sent slowly, so as not to delay samples" },
        `${recordingWords(recording, several)}: ${percent(recording.pieces_received / recording.pieces, 0)} received`,
      ),
    ),
    h("span", { class: "spring" }),
    shown && h("button", { class: "button small quiet", type: "button", onclick: () => onDelete(chosen) }, "Delete"),
    live &&
      (requested
        ? h("span", { class: "muted", role: "status" }, "requested; recording the next steps…")
        : h(
            "button",
            {
              class: "button small",
              type: "button",
              onclick: onRequest,
              title: "Records the allocator in the next two steps, with stacks of allocations and frees.",
            },
            "Record a window",
          )),
  );
}

/** True if a rank has a CUDA device. A run on the CPU has device -1. */
export const hasCudaDevice = (run) => run.ranks.some((rank) => rank.devices.some(({ index }) => index >= 0));

/** Text for a run without a recording. */
export function nothingRecorded(run, recordings) {
  const hasGpu = hasCudaDevice(run);
  const coming = recordings.length > 0;
  const live = run.state === "running";
  const words = coming
    ? "A recording is being received. It appears here when complete."
    : !hasGpu
      ? "This run used no CUDA device. Recordings need PyTorch's CUDA allocator."
      : live
        ? "“Record a window” records the next steps of this run."
        : "This run ended without a recording. Runs record their first steps and a later window, unless `VRAMSCOPE_WINDOWS=0`.";
  return h(
    "section",
    { class: "card empty" },
    h("h2", {}, coming ? "Receiving a recording" : "No recording"),
    h("p", {}, withCode(words)),
    hasGpu &&
      !live &&
      !coming && [
        h("p", { class: "or" }, "For a snapshot file of PyTorch:"),
        h("div", { class: "narrow" }, snippet("vramscope whatif snapshot.pickle")),
      ],
  );
}
