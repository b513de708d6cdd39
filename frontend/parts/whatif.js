/** Predictions for other allocator settings: a sweep of common ones, the reader's own, and other devices. */

import { fill, h, setText } from "vramscope/dom.js";
import { bytes } from "vramscope/format.js";
import { problemBanner, snippet } from "vramscope/parts/ui.js";
import { tableDownload } from "vramscope/parts/table_download.js";
import { jobProgress, WhatIfJob } from "vramscope/parts/whatif_question.js";
import { sharedNotes, whatIfTable } from "vramscope/parts/whatif_table.js";
import { setQuery, store } from "vramscope/store.js";

const GIB = 2 ** 30;
const BETWEEN = ";"; // separator of settings in the URL; PyTorch's settings never contain it
const CARDS_GIB = [8, 12, 16, 24, 32, 40, 48, 64, 80, 96, 141, 192];

export class WhatIf {
  constructor({ onEvent, said = () => [] }) {
    Object.assign(this, { onEvent, said });
    this.card = h("select", {
      "aria-label": "Card",
      onchange: (event) => setQuery({ card: event.target.value || null }),
    });
    this.field = h("input", {
      type: "text",
      "aria-label": "Your settings",
      placeholder: "max_split_size_mb:256,…",
      "aria-describedby": "own-settings-refused",
      spellcheck: "false",
      autocomplete: "off",
      oninput: () => this.showRefusal(null),
    });
    // beside the button Try: above the table it would be out of sight
    this.refusal = h("span", { class: "more", id: "own-settings-refused", "aria-live": "polite" });
    this.variable = h("code", { class: "muted" }, "PYTORCH_CUDA_ALLOC_CONF=");
    this.form = h(
      "form",
      { class: "own-settings", onsubmit: (event) => this.add(event) },
      this.variable,
      this.field,
      h("button", { class: "button small", type: "submit" }, "Try"),
      this.refusal,
    );
    this.downloads = h("span");
    this.parts = {
      trouble: h("div"),
      residual: h("span"),
      notes: h("div"),
      progress: h("div"),
      table: h("div"),
    };
    /** Recommendation. Pages place it above their charts. */
    this.advice = h("div", { class: "whatif-advice", "aria-live": "polite" });
    this.rest = h(
      "details",
      { class: "whatif-rest", ontoggle: () => this.drawSummary() },
      h("summary", {}),
      this.parts.table,
    );
    this.element = h(
      "section",
      { class: "card whatif", "aria-label": "Other allocator settings" },
      h(
        "header",
        {},
        h("h2", {}, "What if: other allocator settings"),
        h("span", { class: "spring" }),
        h("label", { class: "muted" }, "On a device of ", this.card),
        this.downloads,
      ),
      h("div", { class: "pad" }, this.parts.progress, this.parts.trouble),
      this.rest,
      h("div", { class: "pad whatif-foot" }, this.form, this.parts.residual, this.parts.notes),
    );
    this.own = ownSettings(store.get().query);
    this.stop = store.watch(({ query }) => this.device !== undefined && this.follow(query));
  }

  close() {
    this.stop();
    this.sweepJob?.cancel();
    this.ownJob?.cancel();
  }

  /** Called when the URL names another device or other settings. */
  follow(query) {
    const own = ownSettings(query);
    const others = query.try !== this.knownTry && own.join(BETWEEN) !== this.own.join(BETWEEN);
    this.knownTry = query.try;
    if (others) Object.assign(this, { own, adding: null });
    if (this.cardOf(query) !== this.device) this.request();
    else if (others) {
      this.requestOwn();
      this.draw();
    }
  }

  /** Stores the reader's settings in the URL. */
  storeInAddress() {
    this.knownTry = this.own.join(BETWEEN) || undefined;
    if (store.get().query.try !== this.knownTry) setQuery({ try: this.knownTry ?? null });
  }

  remove(conf) {
    this.own = this.own.filter((other) => other !== conf);
    this.storeInAddress();
    this.requestOwn();
    this.draw();
  }

  cardOf(query) {
    const gib = Number(query.card);
    return gib > 0 && Number.isFinite(gib) ? Math.round(gib * GIB) : null;
  }

  /** Shows the predictions for a recording. `moments`: answer of `/moments`. */
  open(moments) {
    this.moments = moments;
    const { device_total_bytes: total } = moments;
    const own = total ? `${bytes(total)} (as recorded)` : "no limit (device unknown)";
    fill(
      this.card,
      h("option", { value: "" }, own),
      CARDS_GIB.map((gib) => h("option", { value: String(gib) }, `${gib} GiB`)),
    );
    this.request();
  }

  request() {
    this.device = this.cardOf(store.get().query);
    const listed = this.device === null ? "" : String(this.device / GIB);
    if (![...this.card.options].some((option) => option.value === listed))
      this.card.append(h("option", { value: listed }, bytes(this.device)));
    this.card.value = listed;
    this.sweepJob?.cancel();
    this.sweepJob = new WhatIfJob(this.moments.recording, { device_bytes: this.device }, () => this.draw());
    this.requestOwn();
    this.draw();
  }

  requestOwn() {
    this.ownJob?.cancel();
    this.ownJob =
      this.own.length > 0
        ? new WhatIfJob(this.moments.recording, { confs: this.own, device_bytes: this.device }, () => this.draw())
        : null;
  }

  add(event) {
    event.preventDefault();
    const conf = this.field.value
      .trim()
      .replace(/^(export\s+)?PYTORCH_((CUDA|HIP)_)?ALLOC_CONF=/, "")
      .replace(/^(["'])(.*)\1$/, "$2");
    if (!conf || !this.moments) return;
    this.own = [...this.own.filter((other) => other !== conf), conf];
    this.adding = conf;
    this.tried = this.field.value;
    this.showRefusal(null);
    this.requestOwn();
    this.draw();
  }

  /** Shows why the settings of the field were refused. Null clears it. */
  showRefusal(problem) {
    setText(this.refusal, problem ? problem.detail || problem.message : "");
    if (problem) this.field.setAttribute("aria-invalid", "true");
    else this.field.removeAttribute("aria-invalid");
  }

  draw() {
    const { sweepJob, ownJob } = this;
    // a refused setting is reported and not requested again
    if (ownJob?.problem) {
      this.showRefusal(ownJob.problem);
      const others = this.own.filter((conf) => conf !== (this.adding ?? ownJob.problem.seen));
      if (others.length < this.own.length) {
        this.own = others;
        this.requestOwn();
      } else this.ownJob = null;
      this.adding = null;
      if (this.own.length === 0) this.storeInAddress();
    } else if (this.adding && ownJob?.answer?.state === "done") {
      if (this.tried === this.field.value) this.field.value = ""; // unless another one is being typed
      this.adding = null;
    }
    if (ownJob?.answer) this.storeInAddress();
    const result = sweepJob.answer?.result;
    fill(this.parts.progress, jobProgress(sweepJob), this.ownJob && jobProgress(this.ownJob));
    fill(this.parts.trouble, sweepJob.problem && problemBanner(sweepJob.problem));
    const job = result && sweepJob.answer.job;
    if (job !== this.downloadsOf) {
      this.downloadsOf = job;
      fill(this.downloads, job && tableDownload("whatif", () => ({ recording: sweepJob.recording, job })));
    }
    this.drawAdvice(result);
    const yours = ownJob?.answer?.result?.rows ?? [];
    fill(
      this.parts.table,
      result &&
        whatIfTable(result, {
          yours: yours.filter(
            (row) =>
              !row.recorded && this.own.includes(row.conf) && !result.rows.some((other) => other.conf === row.conf),
          ),
          moments: this.moments,
          device: this.device,
          onEvent: this.onEvent,
          onRemove: (conf) => this.remove(conf),
        }),
    );
    this.drawSummary();
    fill(this.parts.residual, result && replayError(result.residual));
    const said = [...this.said(), result?.residual.words].join(" ");
    const notes = result ? [...result.notes, ...sharedNotes(result.rows)].filter((note) => !said.includes(note)) : [];
    fill(
      this.parts.notes,
      notes.length > 0 &&
        h(
          "ul",
          { class: "whatif-notes muted" },
          notes.map((note) => h("li", {}, note)),
        ),
    );
  }

  /** Shows a new recommendation. The table opens by itself only if a setting is worth a change, or if the reader asked. */
  drawAdvice(result) {
    const failed = Boolean(this.sweepJob.problem) || this.sweepJob.answer?.state === "failed";
    const key = JSON.stringify([result?.recommendation, this.own, this.device, failed]);
    if (key === this.drawnAdvice) return;
    this.drawnAdvice = key;
    fill(this.advice, result ? advice(result) : !failed && adviceToCome());
    if (result) setText(this.variable, `${result.recommendation.variable}=`);
    if (result && (result.recommendation.conf !== null || this.own.length || this.device !== null))
      this.rest.open = true;
  }

  drawSummary() {
    const rows = this.sweepJob?.answer?.result?.rows;
    this.rest.hidden = !rows;
    if (rows) setText(this.rest.firstElementChild, `${this.rest.open ? "Hide" : "Show"} the ${rows.length} settings tried`);
  }
}

/** Reads the reader's own settings from the URL. */
function ownSettings({ try: text = "" }) {
  return [
    ...new Set(
      text
        .split(BETWEEN)
        .map((conf) => conf.trim())
        .filter(Boolean),
    ),
  ];
}

/** Keeps the space of the recommendation, so that the charts below do not move when it arrives. */
const adviceToCome = () =>
  h("div", { class: "banner advice quiet", "aria-busy": "true" }, h("span", { class: "muted" }, "Replaying allocator settings…"));

/** Recommendation, with the line to copy. */
function advice({ recommendation: { conf, words, variable } }) {
  const line =
    conf === ""
      ? `unset ${variable}`
      : `export ${variable}=${/[[\]>]/.test(conf) ? `"${conf}"` : conf}`;
  return h(
    "div",
    { class: `banner advice ${conf === null ? "quiet" : "good"}`, "data-advice": conf ?? "" },
    conf !== null && h("strong", {}, conf === "" ? "Use the default settings." : "Try this setting."),
    h("span", {}, words),
    conf !== null && snippet(line),
  );
}

/** Error of the replay under the recorded settings. */
function replayError(moments) {
  return h(
    "span",
    { class: "residual", "data-residual": moments.exact ? "exact" : "differs" },
    h("span", { class: moments.exact ? null : "more" }, moments.words),
  );
}
