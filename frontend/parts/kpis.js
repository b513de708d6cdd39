/** Key figures of a run: current memory, peak, headroom, step time, alerts, overhead. */

import { api } from "vramscope/api.js";
import { fill, h, setText } from "vramscope/dom.js";
import { bytes, count, stepCount, isKnown, overhead, percent, seconds, UNKNOWN } from "vramscope/format.js";
import { peakOf, peakText } from "vramscope/parts/peak_bound.js";
import { alertsCell } from "vramscope/parts/alerts.js";
import { meter } from "vramscope/parts/ui.js";
import { isOnCpu } from "vramscope/parts/view_bar.js";
import { headroomOf, peakRank } from "vramscope/parts/run_verdict.js";

const FIELDS = ["allocated_bytes", "reserved_bytes", "device_used_bytes", "process_rss_bytes"];
/** Cells of a device. Those of the CPU are "resident", "step", "alerts" and "cost". */
const OF_A_DEVICE = ["allocated", "reserved", "peak", "headroom", "fragmentation"];
const DRAW_EVERY_MS = 250;
const LARGE_COST = 0.1; // the total is shown with a larger share of the step time: much of it may be the start of a short run
const LAST_SECONDS = 60; // length of the last part of the run that is searched for newest values

/** Whole percent; a small share is not 0. */
const percentOfDevice = (share) => (share > 0 && share < 0.01 ? "< 1 %" : percent(share, 0));

export class Kpis {
  drawnAt = -Infinity; // by live rows

  constructor(run) {
    this.run = run;
    this.now = {};
    this.cells = {};
    const cell = (key, label, title) => {
      const value = h("div", { class: "value" }, "…");
      const note = h("div", { class: "note" });
      const bar = h("div");
      const name = h("div", { class: "label" }, label);
      this.cells[key] = { name, value, note, bar };
      this.cells[key].element = h("div", { class: "kpi", title: title ?? null, "data-kpi": key }, name, value, note, bar);
      return this.cells[key].element;
    };
    this.element = h(
      "section",
      { class: "card kpis even", "aria-label": "Key figures" },
      cell("resident", "Resident memory now", "host memory of the process"),
      cell("allocated", "Allocated now", "bytes in blocks that tensors own"),
      cell("reserved", "Reserved now", "bytes that PyTorch took from the device"),
      cell("peak", "Peak allocated", "peak of the allocator's counter; with ≥ a lower bound"),
      cell(
        "headroom",
        "Headroom",
        "capacity minus the highest use of the device, with context and other processes; without NVML, minus peak reserved",
      ),
      cell("fragmentation", "Never needed", "peak reserved minus peak allocated, as a share of peak reserved"),
      cell("step", "Step time", "median over the run"),
      cell(
        "alerts",
        "Alerts",
        "leaks, out-of-memory errors, known pitfalls, peaks that are lower bounds; rules are in Settings",
      ),
      cell("cost", "Agent overhead", "measured in this run: watched against unwatched steps"),
    );
  }

  clear() {
    this.now = {};
    this.draw();
  }

  setRun(run, place) {
    this.run = run;
    this.place = place;
    this.draw();
  }

  /** Fetches the last known values of a rank's device. `isInView` says whether the page still shows that device. */
  async fetchLast({ rank, device }, isInView) {
    const end = this.run.window?.last_seconds;
    if (!end) return;
    try {
      const answer = await api.series(this.run.run_id, {
        stream: "samples",
        names: FIELDS.join(","),
        rank,
        device,
        x: "time",
        from: Math.max(0, end - this.run.started_seconds - LAST_SECONDS),
        points: 4000,
      });
      if (isInView()) this.seed(answer);
    } catch {
      // the values stay unknown
    }
  }

  /** Takes the last known value of each field from an answer of `/series`. */
  seed({ series }) {
    for (const name of FIELDS) {
      const values = series[name]?.value ?? series[name]?.mean ?? [];
      if (!isKnown(this.now[name])) this.now[name] = values.findLast(isKnown) ?? null;
    }
    this.draw();
  }

  /** Takes live rows of the rank and device in view. */
  feed({ stream, columns }) {
    if (stream !== "samples") return;
    for (const name of FIELDS) {
      const value = columns[name]?.at(-1);
      if (value !== undefined) this.now[name] = isKnown(value) && value >= 0 ? value : null;
    }
    // at once, and then at most every 250 ms
    this.waiting ??= setTimeout(
      () => {
        this.waiting = null;
        this.drawnAt = performance.now();
        this.draw();
      },
      Math.max(0, this.drawnAt + DRAW_EVERY_MS - performance.now()),
    );
  }

  draw() {
    const { run } = this;
    const capacity = this.place?.total ?? run.capacity_bytes;
    const ended = run.state !== "running";
    const onCpu = Boolean(this.place && isOnCpu(this.place));
    const host = run.ranks.find((rank) => rank.rank === this.place?.rank)?.host_total_bytes;
    const resident = this.now.process_rss_bytes;
    setText(this.cells.resident.name, ended ? "Resident memory at the end" : "Resident memory now");
    this.put("resident", bytes(resident), isKnown(host) ? `of ${bytes(host)} on the host` : "", resident, host);
    const { allocated_bytes: allocated, reserved_bytes: reserved } = this.now;
    setText(this.cells.allocated.name, ended ? "Allocated at the end" : "Allocated now");
    setText(this.cells.reserved.name, ended ? "Reserved at the end" : "Reserved now");
    this.put(
      "allocated",
      bytes(allocated),
      isKnown(allocated) && isKnown(capacity) ? `${percentOfDevice(allocated / capacity)} of the device` : "",
      allocated,
      capacity,
    );
    this.put(
      "reserved",
      bytes(reserved),
      isKnown(capacity) ? `of ${bytes(capacity)}` : "capacity unknown",
      reserved,
      capacity,
    );
    this.put("peak", peakText(run), peakNote(run), peakOf(run).value, capacity);
    const { headroom, most, used, isDeviceUse } = headroomOf(run);
    this.put(
      "headroom",
      isKnown(most) ? `≤ ${bytes(most)}` : bytes(headroom),
      isKnown(used)
        ? `above ${bytes(used)} ${isDeviceUse ? "in use on the device" : "reserved, without CUDA's context"}`
        : isKnown(most)
          ? "peak reserved is a sample"
          : "peak reserved unknown",
      used ?? run.sampled_reserved_bytes,
      capacity,
    );
    this.put(
      "fragmentation",
      percent(run.fragmentation_fraction),
      isKnown(run.fragmentation_fraction)
        ? `${bytes(run.fragmentation?.never_needed_bytes)} of reserved; ${isKnown(run.fragmentation?.unusable_bytes) ? `${bytes(run.fragmentation.unusable_bytes)} unusable` : "unusable: unknown"}`
        : run.steps > 0
          ? "no step peaks yet"
          : "no steps",
    );
    this.put("step", seconds(run.step_seconds_median), stepNote(run, this.place));
    this.drawAlerts();
    const cost = run.agent_overhead;
    const words = overhead(cost);
    const figure = words.match(/(below )?[\d.,]+ %/)?.[0];
    const note = words.includes("measured)")
      ? `of step time, measured${cost.fraction > LARGE_COST ? `: ${seconds(cost.hook_seconds)} in total` : ""}`
      : "of step time: below the noise";
    this.put(
      "cost",
      figure ?? (ended ? "not measured" : "not yet measured"),
      figure
        ? note
        : isKnown(cost?.hook_seconds)
          ? `${seconds(cost.hook_seconds)} in total; needs a longer run to estimate per step`
          : "needs a longer run to estimate",
    );
    this.cells.cost.value.classList.toggle("unknown", !figure);
    this.cells.cost.note.title = words;
    if (run.dropped_samples > 0) setText(this.cells.cost.note, `${count(run.dropped_samples)} samples dropped`);
    this.hideCells(onCpu);
  }

  /** Hides the cells of the other kind of device, and before the first step those that are not known yet. */
  hideCells(onCpu) {
    const isEarly = !(this.run.steps > 0);
    for (const [name, { element, value }] of Object.entries(this.cells)) {
      const isOfOther = name === "resident" ? !onCpu : onCpu && OF_A_DEVICE.includes(name);
      element.hidden = isOfOther || (isEarly && value.classList.contains("unknown"));
    }
    this.element.hidden = Object.values(this.cells).every(({ element }) => element.hidden);
  }

  /** Draws the number of alerts. Its note has links and is drawn again only if it changed. */
  drawAlerts() {
    const { value, note, number } = alertsCell(this.run);
    const { alerts: cell } = this.cells;
    const key = [value, ...note].map((part) => part.textContent ?? part).join("\n");
    if (cell.key === key) return;
    cell.key = key;
    setText(cell.value, value);
    cell.value.classList.toggle("wrong", number > 0);
    cell.value.classList.toggle("unknown", value === "none known");
    fill(cell.note, note);
  }

  put(key, value, note, part, total) {
    const cell = this.cells[key];
    setText(cell.value, value);
    cell.value.classList.toggle("unknown", value === UNKNOWN);
    setText(cell.note, note);
    if (cell.note.title !== note) cell.note.title = note;
    const share = isKnown(part) && isKnown(total) && total > 0 ? (part / total).toFixed(3) : "";
    if (cell.share !== share) {
      cell.share = share;
      fill(cell.bar, share && meter(part, total));
    }
  }
}

function stepNote({ steps }, place) {
  if (!(steps > 0)) return "no finished step";
  return place?.emulated ? "emulated GPU: timing is not meaningful" : `median of ${stepCount(steps)}`;
}

/** Rank, step and phase of the peak. Its categories are in the verdict and in the bars below. */
function peakNote(run) {
  const parts = [];
  if (isKnown(run.sampled_allocated_bytes)) parts.push("lower bound: sampled");
  if (run.lower_bound_steps > 0) parts.push(`lower bound: counters were reset in ${stepCount(run.lower_bound_steps)}`);
  const rank = peakRank(run);
  if (rank !== null) parts.push(`rank ${rank}`);
  if (isKnown(run.peak_step)) parts.push(`step ${count(run.peak_step)}`);
  if (run.peak_phase) parts.push(run.peak_phase);
  return parts.join(" · ");
}
