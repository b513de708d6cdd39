/** Page of a run's profiles: cost of operations, modules and source lines, and a button that requests a profile. */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown, percent, seconds } from "vramscope/format.js";
import { known, problemBanner } from "vramscope/parts/ui.js";
import { costWords, nothingProfiled, profileBar } from "vramscope/parts/profile_bar.js";
import { ChartsFirst } from "vramscope/parts/phone_order.js";
import { ProfileTable } from "vramscope/parts/profile_table.js";
import { RunPage, opens } from "vramscope/parts/run_page.js";
import { setQuery, store } from "vramscope/store.js";

const PATIENCE_MS = 60_000; // without a profile by then, the button comes back
const BY = [
  ["peak", "Alive at the peak"],
  ["allocated", "Allocated"],
  ["cpu", "CPU time"],
  ["device", "Device time"],
];
const TABLES = ["operations", "modules", "lines"];
const LEVEL_PX = 22;

class OperationsPage extends RunPage {
  tab = "operations";
  refreshAfter = "recording";
  refreshIfChanged = ["profiles"];
  requestedAt = null;

  async fetch(name) {
    this.list = await api.profiles(name);
  }

  close() {
    super.close();
    this.table?.close();
    clearTimeout(this.patience);
  }

  /** Profile to show: the chosen one, else the newest complete one. */
  get chosen() {
    const complete = this.list.profiles.filter((profile) => profile.whole);
    return complete.find((profile) => profile.profile === store.get().query.profile) ?? complete[0] ?? null;
  }

  /** Quantity of the figures, from the URL. */
  get by() {
    const wanted = store.get().query.by;
    return this.choices.some(([name]) => name === wanted) ? wanted : "peak";
  }

  get choices() {
    return BY.filter(([name]) => name !== "device" || this.profile?.device_time);
  }

  /** Table whose rows the memory chart is stacked by, from the URL. */
  get stack() {
    const wanted = store.get().query.stack;
    return this.stacks.includes(wanted) ? wanted : TABLES[0];
  }

  get stacks() {
    return TABLES.filter((name) => this.profile?.tables[name].rows > 0);
  }

  build() {
    const { stale, head, ended, bar, trouble, time, peak, figures, notes, by, stack, empty } = this.divide(
      "stale",
      "head",
      "ended",
      "bar",
      "trouble",
      "time",
      "peak",
      "figures",
      "notes",
      "by",
      "stack",
      "empty",
    );
    const figure = (name, title) => {
      const made = chart({
        title,
        file: `${this.file}-${name}`,
        numbers: name !== "modules",
        describe: () =>
          `${title}. ${this.profile?.[this.by === "cpu" || this.by === "device" ? "time" : "memory"] ?? ""}`,
        load: async (signal) => {
          const answer = await api.profileFigure(
            this.shown,
            name,
            name === "memory" ? { table: this.stack } : { by: this.by },
            signal,
          );
          const levels = answer.figure.layout.meta?.levels;
          if (levels)
            made
              .querySelector(".plot-frame")
              .style.setProperty("min-height", `${Math.max(140, Math.min(700, levels * LEVEL_PX + 56))}px`);
          return answer;
        },
      });
      made.classList.add("wide", `profile-${name}`);
      made.dataset.figure = `profile-${name}`;
      return made;
    };
    this.modules = figure("modules", "Steps by module");
    this.operations = figure("operations", "Most expensive operations");
    this.memory = figure("memory", "Memory during the steps");
    this.table = new ProfileTable();
    by.className = stack.className = "view-bar";
    peak.className = "profile-peak";
    const first = h("div", { class: "charts" }, this.memory);
    this.recorded = h(
      "div",
      {},
      h("div", { class: "banner verdict quiet profile-verdict", "aria-live": "polite" }, time, peak),
      figures,
      notes,
      stack,
      first,
      by,
      h("div", { class: "charts" }, this.modules, this.operations),
      this.table.element,
    );
    this.order = new ChartsFirst(first, [notes, figures, peak, stack]);
    this.stops.push(() => this.order.close());
    fill(this.root, stale, head, ended, bar, trouble, empty, this.recorded);
    this.show();
  }

  update() {
    if (!this.id) return;
    if (this.chosen?.profile !== this.shown) this.show();
    else if (this.drawnBy !== this.by) this.reload();
    else if (this.stackedBy !== this.stack) this.restack();
  }

  async show() {
    const chosen = this.chosen;
    this.shown = chosen?.profile ?? null;
    this.profile = null;
    this.draw();
    this.recorded.hidden = true;
    if (!chosen) return;
    try {
      const profile = await api.profile(this.shown);
      if (this.closed || profile.profile !== this.shown) return;
      this.profile = profile;
      fill(this.parts.trouble);
      this.recorded.hidden = false;
      this.draw();
      this.table.open(this.shown, profile);
      this.reload();
    } catch (error) {
      if (!this.closed) fill(this.parts.trouble, problemBanner(error));
    }
  }

  reload() {
    this.drawnBy = this.by;
    this.drawBy();
    for (const one of [this.modules, this.operations]) one.reload();
    this.restack();
  }

  restack() {
    this.stackedBy = this.stack;
    this.drawBy();
    this.memory.reload();
  }

  drawRun() {
    this.draw();
  }

  /** Fetches the list of profiles again. Shows a new profile if none was chosen. */
  async refetch() {
    const before = this.list.profiles.filter((profile) => profile.whole).length;
    this.list = await api.profiles(this.id);
    if (this.closed) return;
    if (this.list.profiles.filter((profile) => profile.whole).length > before) this.requestedAt = null;
    if (this.chosen?.profile !== this.shown) this.show();
    else this.draw();
  }

  async requestProfile(trace) {
    try {
      await api.askForProfile(this.id, { trace: trace || null });
      this.requestedAt = Date.now();
      setQuery({ profile: null });
      fill(this.parts.trouble);
      clearTimeout(this.patience);
      this.patience = setTimeout(() => this.giveUp(), PATIENCE_MS);
    } catch (error) {
      fill(this.parts.trouble, problemBanner(error));
    }
    this.draw();
  }

  giveUp() {
    if (!this.requestedAt) return;
    this.requestedAt = null;
    const words = "Requested a minute ago. The run may be in a long step, use its own profiler, or be disconnected.";
    fill(
      this.parts.trouble,
      h("div", { class: "banner warn" }, h("strong", {}, "No profile yet."), h("span", {}, words)),
    );
    this.draw();
  }

  async remove(profile) {
    if (!confirm("Delete this profile? This cannot be undone.")) return;
    try {
      await api.deleteProfile(profile);
      setQuery({ profile: null });
      this.refresh();
    } catch (error) {
      fill(this.parts.trouble, problemBanner(error));
    }
  }

  draw() {
    const { run, profile } = this;
    const { profiles } = this.list;
    const several = run.ranks.length > 1;
    this.drawHead();
    this.put("bar", [profiles, this.shown, run.state, this.requestedAt, several], () =>
      profileBar(profiles, {
        chosen: this.shown,
        several,
        live: run.state === "running",
        requested: this.requestedAt !== null,
        onChoose: (id) => setQuery({ profile: id }, { push: true }),
        onRequest: (trace) => this.requestProfile(trace),
        onDelete: (id) => this.remove(id),
      }),
    );
    this.put("empty", [profiles, run.state], () => !this.chosen && nothingProfiled(run, profiles));
    this.put("time", profile?.time, () => profile && sentence("Time.", profile.time));
    this.put("peak", profile?.memory, () => profile && sentence("Memory.", profile.memory));
    this.put("figures", profile, () => profile && figures(profile));
    this.put(
      "notes",
      profile?.notes,
      () =>
        profile?.notes.length > 0 &&
        h(
          "div",
          { class: "banner warn", "data-notes": true },
          h("strong", {}, "Incomplete."),
          h("span", {}, `${profile.notes.join(". ")}.`),
        ),
    );
    this.drawBy();
  }

  drawBy() {
    const { by, choices, stack, stacks } = this;
    const segmented = (label, name, options, chosen, first) => [
      h("span", { class: "muted" }, label),
      h(
        "span",
        { class: "segmented", role: "group", "aria-label": label },
        options.map(([value, words]) =>
          h(
            "button",
            {
              type: "button",
              [`data-${name}`]: value,
              "aria-pressed": String(value === chosen),
              onclick: () => setQuery({ [name]: value === first ? null : value }),
            },
            words,
          ),
        ),
      ),
    ];
    this.put("by", [by, choices], () => segmented("Charts by", "by", choices, by, "peak"));
    this.put("stack", [stack, stacks], () =>
      segmented(
        "Memory by",
        "stack",
        stacks.map((name) => [name, `${name[0].toUpperCase()}${name.slice(1)}`]),
        stack,
        TABLES[0],
      ),
    );
  }
}

const sentence = (subject, words) => h("p", {}, h("strong", {}, `${subject} `), words);

function figures(profile) {
  const cell = (name, label, value, note, title = null) =>
    h(
      "div",
      { class: "kpi", "data-kpi": name, title },
      h("span", { class: "label" }, label),
      h("span", { class: "value" }, known(value)),
      h("span", { class: "note" }, note),
    );
  const steps = Math.max(1, profile.steps);
  const cost = costWords(profile);
  const seen = profile.tables.operations.sums;
  const unattributed =
    isKnown(profile.unattributed_peak_bytes) && profile.peak_bytes > 0
      ? `${percent(profile.unattributed_peak_bytes / profile.peak_bytes)} not attributed`
      : "";
  return h(
    "section",
    { class: "card kpis", "aria-label": "Key figures of the profile" },
    cell(
      "step",
      "Profiled step",
      seconds(profile.span_ns / 1e9 / steps),
      isKnown(profile.cost.step_before) ? `${seconds(profile.cost.step_before)} without` : "unknown without",
    ),
    cell(
      "device",
      "Device busy",
      isKnown(profile.device_busy_ns) ? percent(profile.device_busy_ns / profile.span_ns) : "unknown",
      profile.device_time
        ? `${seconds(profile.device_busy_ns / 1e9)} of ${seconds(profile.span_ns / 1e9)}`
        : "no kernels recorded",
    ),
    cell("peak", "Allocated at the peak", bytes(profile.peak_bytes), unattributed),
    cell("before", "Allocated before the profile", bytes(profile.before_bytes), "parameters, optimizer state, …"),
    cell(
      "allocated",
      "Allocated per step",
      bytes(isKnown(profile.allocated_bytes) ? profile.allocated_bytes / steps : null),
      isKnown(profile.allocated_bytes) && seen.self_allocated_bytes === profile.allocated_bytes
        ? "each byte counts in one row below"
        : "",
    ),
    cell(
      "retries",
      "cudaMalloc",
      known(count(profile.device_allocations)),
      isKnown(profile.retries) ? `${count(profile.retries)} retries, ${count(profile.device_frees)} cudaFree` : "",
    ),
    cell("cost", "Profiler overhead", seconds(cost.totalSeconds), "training time", cost.text),
  );
}

export const open = opens(OperationsPage);
