/** Advice on lowering the peak of a recorded step, largest saving first, with sources. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, categoryName, count, isKnown, percent, seconds } from "vramscope/format.js";
import { problemBanner } from "vramscope/parts/ui.js";

const FIRST_WAIT_SECONDS = 0.3; // for replays under other allocator settings
const MOST_WAIT_SECONDS = 10;
const REFRESH_MS = 500;
const MOST_NAMED = 3; // categories in the sentence

/** Change that each rule proposes. A sentence begins with the reason for it. */
const CHANGES = {
  autocast_cache: "autocast without its cache",
  batch: "a larger batch",
  checkpointing: "activation checkpointing",
  evaluation: "torch.no_grad() for forward passes without backward",
  evaluation_batch: "smaller evaluation batches",
  foreach: "foreach=False or fused=True in the optimizer",
  fragmentation: "other allocator settings",
  kept_copies: "no copies of the weights on the device",
  late_clear: "zero_grad() right after the optimizer step",
  loss_head: "a fused or chunked loss",
  optimizer_state: "an 8-bit optimizer",
  retries: "less fragmentation or a smaller batch",
  waits_for_data: "prefetching batches",
  weight_copies: "16-bit weights and gradients",
};

export class AdviceCard {
  constructor() {
    this.body = h("div", { class: "pad" });
    this.verdict = h("section", { class: "banner verdict quiet peak-verdict", "data-verdict": true });
    this.element = h(
      "section",
      { class: "card advice-card", "aria-label": "How to lower the peak", "aria-live": "polite" },
      h("header", {}, h("h2", {}, "How to lower the peak")),
      this.body,
    );
  }

  /** Requests the advice of a recording and shows it. A later request cancels this one. `after`: what it waits for. */
  async open(recording, after = null) {
    this.recording = recording;
    this.request?.abort(); // a browser has six connections, and this answer may take long
    const request = (this.request = new AbortController());
    fill(this.body, h("p", { class: "muted" }, "computing…"));
    this.verdict.hidden = false; // an earlier recording may have failed
    fill(this.verdict, h("span", { class: "muted" }, "computing what the peak is made of…"));
    try {
      await after;
      if (this.request !== request) return;
      for (let wait = FIRST_WAIT_SECONDS, pending = true; pending; wait = MOST_WAIT_SECONDS) {
        const anatomy = await api.recording(recording, "anatomy", { wait_seconds: wait }, request.signal);
        if (this.request !== request) return;
        this.draw(anatomy);
        pending = anatomy.pending;
        if (pending) await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
      }
    } catch (error) {
      if (this.request !== request || error.name === "AbortError") return;
      this.verdict.hidden = true; // the card below says what failed
      fill(this.body, problemBanner(error));
    }
  }

  close() {
    this.recording = null;
    this.request?.abort();
  }

  draw({ moment, categories, coverage, advice, pending, allocated_bytes: total }) {
    this.verdict.hidden = total === 0;
    fill(
      this.verdict,
      h("strong", {}, `The peak is ${moment}.`),
      h("span", {}, `${inWords(categories.slice(0, MOST_NAMED), total)}.`),
      advice.length > 0 &&
        h(
          "button",
          { class: "link", type: "button", onclick: () => this.element.scrollIntoView({ block: "start" }) },
          `Most worth trying: ${changeText(advice[0])}`,
        ),
    );
    fill(
      this.body,
      advice.length
        ? h("ol", { class: "advice-list" }, advice.map(adviceItem))
        : !pending && h("p", { class: "muted", "data-no-advice": true }, noAdviceText(coverage)),
      pending && h("p", { class: "muted" }, "replaying other allocator settings…"),
      coverageNote(coverage),
    );
  }
}

/** Change in words, with its saving if one is known: "an 8-bit optimizer (up to 24 MiB less at the peak)". */
function changeText(advice) {
  const change = settingText(advice.evidence) ?? CHANGES[advice.rule] ?? advice.sentence.split(/[.:] /)[0].replace(/\.$/, "");
  const gain = gainText(advice);
  return gain ? `${change} (${gain})` : change;
}

/** Allocator settings in words, if the advice is on these. Empty settings are PyTorch's own. */
const settingText = ({ conf }) => (conf === undefined ? null : conf || "the default allocator settings");

/** Saving in words: bytes, else time, else batch size. Null if unknown. */
function gainText({ saves_bytes: saves, seconds: shorter, evidence }) {
  if (saves)
    return `${evidence.at_most ? "up to " : ""}${bytes(saves)} less ${{ device: "device memory needed", run: "at the run's peak" }[evidence.of] ?? "at the peak"}`;
  const most = shorter ?? evidence.at_most_seconds;
  if (isKnown(most)) return `${isKnown(shorter) ? "" : "up to "}${seconds(most)} less per step`;
  if (isKnown(evidence.largest_batch_size)) return `batch of ${count(evidence.largest_batch_size)}`;
  return null;
}

function adviceItem({ rule, sentence, source, file, line, ...anatomy }) {
  return h(
    "li",
    { "data-rule": rule },
    h("span", { class: "saves" }, gainText(anatomy) ?? "unknown"),
    h(
      "span",
      { class: "said" },
      sentence,
      file ? [" ", h("code", { title: file }, `${shortPath(file)}${line ? `:${line}` : ""}`)] : null,
      " ",
      sourceLink(source),
    ),
  );
}

/** File name with its folder. */
function shortPath(file) {
  return file.replaceAll("\\", "/").split("/").slice(-2).join("/");
}

function sourceLink(source) {
  if (!source.startsWith("https://")) return source ? h("span", { class: "muted" }, `(${source})`) : null;
  return h("a", { href: source, rel: "noreferrer", target: "_blank", class: "muted" }, "source");
}

/** Shares of the peak: "51 % is optimizer, 25 % unknown". */
const inWords = (categories, total) =>
  categories
    .map(({ category, bytes: size }, at) => `${percent(size / total)} ${at ? "" : "is "}${categoryName(category)}`)
    .join(", ");

function noAdviceText({ basis }) {
  if (basis === "owners") return "No known change would lower this peak by 2 % or more.";
  return "No advice. This recording does not name the owners of tensors, which several rules need.";
}

function coverageNote({ unknown_bytes: unknown, unknown_fraction: fraction, basis }) {
  if (!unknown) return null;
  const why = basis === "owners" ? "" : " Recordings by the agent name owners; snapshot files do not.";
  return h(
    "p",
    { class: "muted", "data-unknown": true },
    `${bytes(unknown)} (${percent(fraction)}) of the peak could not be attributed and is shown as unknown.${why}`,
  );
}
