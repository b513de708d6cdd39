/** Choice of a profile, and buttons that request one. */

import { h } from "vramscope/dom.js";
import { ago, bytes, percent, seconds } from "vramscope/format.js";
import { recordingWords } from "vramscope/parts/recording_bar.js";
import { snippet, withCode } from "vramscope/parts/ui.js";

/** Bar above a profile. `requested`: whether a profile was requested and has not arrived. */
export function profileBar(profiles, { chosen, several, live, requested, onChoose, onRequest, onDelete }) {
  const complete = profiles.filter((profile) => profile.whole);
  const coming = profiles.filter((profile) => !profile.whole);
  const shown = complete.find((profile) => profile.profile === chosen);
  const select =
    complete.length > 0 &&
    h(
      "select",
      { "aria-label": "Profile", onchange: (event) => onChoose(event.target.value) },
      complete.map((profile) => h("option", { value: profile.profile }, recordingWords(profile, several))),
    );
  if (select) select.value = chosen;
  return h(
    "div",
    { class: "view-bar recording-bar" },
    select && h("label", {}, h("span", { class: "muted" }, "Profile"), select),
    shown && h("span", { class: "muted" }, `recorded ${ago(shown.received_seconds, Date.now() / 1000)}`),
    coming.map((profile) =>
      h(
        "span",
        { class: "chip", "data-coming": profile.profile, title: "sent slowly, so as not to delay samples" },
        `${recordingWords(profile, several)}: ${percent(profile.pieces_received / profile.pieces, 0)} received`,
      ),
    ),
    h("span", { class: "spring" }),
    shown && traceLink(shown),
    shown && h("button", { class: "button small quiet", type: "button", onclick: () => onDelete(chosen) }, "Delete"),
    live &&
      (requested
        ? h("span", { class: "muted", role: "status", "data-asked": true }, waiting(coming))
        : [
            h(
              "button",
              {
                class: "button small",
                type: "button",
                onclick: () => onRequest(false),
                title:
                  "Profiles the next two steps with Python stacks and shapes. They are slower, and a short pause follows.",
              },
              "Profile the next steps",
            ),
            h(
              "button",
              {
                class: "button small quiet",
                type: "button",
                onclick: () => onRequest(true),
                title: "with PyTorch's full trace, for Perfetto",
              },
              "… with the trace",
            ),
          ]),
  );
}

function waiting(coming) {
  return h(
    "span",
    {},
    h("progress", { "aria-label": "receiving the profile" }),
    coming.length ? " receiving…" : " requested; waiting for the next steps…",
  );
}

function traceLink({ profile, trace }) {
  if (trace === null) return null;
  if (!trace.whole) return h("span", { class: "chip" }, "receiving the trace");
  return h(
    "a",
    {
      class: "button small quiet",
      href: `/api/v1/profiles/${encodeURIComponent(profile)}/trace`,
      download: true,
      title: "Chrome's JSON, gzipped: open it at ui.perfetto.dev or chrome://tracing",
    },
    `Trace (${bytes(trace.bytes)})`,
  );
}

/** Cost of a profile for the training: seconds, and a sentence. */
export function costWords({ cost, steps }) {
  const slower =
    cost.step_before !== null && cost.step_within !== null
      ? Math.max(0, cost.step_within - cost.step_before) * steps
      : null;
  const parts = [
    slower !== null && `${seconds(slower)} of slower steps`,
    `${seconds(cost.opening)} to open it`,
    `${seconds(cost.closing)} to close it`,
  ].filter(Boolean);
  const totalSeconds = (slower ?? 0) + cost.opening + cost.closing;
  return { totalSeconds, text: `${parts.join(", ")}; ${seconds(cost.packing)} CPU on another thread` };
}

/** Text for a run without a profile. */
export function nothingProfiled(run, profiles) {
  const coming = profiles.length > 0;
  const live = run.state === "running";
  const words = coming
    ? "A profile is being received. It appears here when complete."
    : live
      ? "“Profile the next steps” profiles two steps of this run. The agent also profiles one step once the run is long enough for it to cost less than 1 %."
      : "This run ended without a profile. The agent profiles one step once the run is long enough for it to cost less than 1 %. `VRAMSCOPE_PROFILE=0` turns it off.";
  return h(
    "section",
    { class: "card empty" },
    h("h2", {}, coming ? "Receiving a profile" : "No profile"),
    h("p", {}, withCode(words)),
    !coming && [
      h("p", { class: "or" }, "A script profiles its next two steps with:"),
      h("div", { class: "narrow" }, snippet("from vramscope import agent\nsession = agent.attach()\nsession.profile()")),
    ],
  );
}
