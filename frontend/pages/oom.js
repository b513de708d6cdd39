/** Page of a run's out-of-memory errors: cause, remedies, holders of memory, and source line. */

import { api } from "vramscope/api.js";
import { chart, loadPlotly } from "vramscope/chart.js";
import { fill, h } from "vramscope/dom.js";
import { errorText } from "vramscope/parts/error_text.js";
import { endedByOom, errorBar, keyFigures, noErrors, verdict } from "vramscope/parts/oom_verdict.js";
import { counters, lastGoodStep } from "vramscope/parts/oom_changes.js";
import { holders, stackPanel, words } from "vramscope/parts/oom_holders.js";
import { othersAtError } from "vramscope/parts/other_processes.js";
import { ranksTable } from "vramscope/parts/oom_ranks.js";
import { remedyTable } from "vramscope/parts/oom_remedies.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { endBanner } from "vramscope/parts/run_head.js";
import { RunPage, opens } from "vramscope/parts/run_page.js";
import { SegmentMap } from "vramscope/parts/segment_map.js";
import { setQuery, store } from "vramscope/store.js";

const REFRESH_MS = 1_500; // delay of a refresh after a change of the run: a record arrives in pieces
const PARTS = [
  "head",
  "ended",
  "trouble",
  "bar",
  "verdict",
  "text",
  "remedies",
  "figures",
  "where",
  "step",
  "ranks",
  "chart",
  "holders",
  "segments",
];

/** True if the places of free blocks matter: together they had enough for the request. Else the map is one full area. */
const mattersWhere = ({ cause, pieces, message }) => cause === "fragmentation" || pieces?.free_bytes >= message.asked_bytes;

/** Text of the error that ended a run without a record. */
const lastWords = (run) => (endedByOom(run) && run.error_line ? `${run.error_type}: ${run.error_line}` : "");

class OomPage extends RunPage {
  tab = "oom";
  preloadsPlotly = false; // most runs have no error, so no chart
  refreshAfter = "recording";
  refreshIfChanged = ["oom_records", "state"];

  get subject() {
    return "out of memory";
  }

  async fetch(name) {
    this.list = await api.oom(name);
  }

  isUnknown() {
    return true;
  }

  build() {
    fill(this.root, Object.values(this.divide(...PARTS)));
    this.show();
  }

  update() {
    if (this.id) this.show();
  }

  refresh() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(async () => {
      try {
        this.list = await api.oom(this.id);
        this.shown = null;
        if (!this.closed) this.show();
      } catch {
        // the stale banner reports it
      }
    }, REFRESH_MS);
  }

  /** No stale banner: records of past errors do not change. */
  drawConnection() {}

  get chosen() {
    const wanted = store.get().query.error;
    return this.list.errors.find((error) => error.record === wanted && error.whole)?.record ?? this.list.fatal;
  }

  async show() {
    this.drawHead();
    const { chosen } = this;
    fill(
      this.parts.bar,
      errorBar(this.list.errors, {
        chosen,
        several: this.run.world_size > 1,
        onChoose: (error) => setQuery({ error }),
      }),
    );
    if (chosen === null) {
      for (const part of PARTS.slice(6)) fill(this.parts[part]);
      fill(this.parts.verdict, noErrors(this.run, this.list));
      const text = lastWords(this.run); // a run may fail while its page is open
      if (this.pastedText !== text) this.pasted = h("section", { class: "card pad" }, errorText({ text }));
      this.pastedText = text;
      if (!this.pasted.isConnected) fill(this.parts.text, this.pasted);
      return;
    }
    if (chosen === this.shown) return;
    this.shown = chosen;
    fill(this.parts.text);
    loadPlotly().catch(() => {});
    try {
      let error = await api.oomError(chosen);
      const isShown = () => !this.closed && this.shown === chosen;
      if (!isShown()) return;
      fill(
        this.parts.trouble,
        error.pending && h("p", { class: "muted", role: "status" }, "replaying the open recording…"),
      );
      this.draw(error);
      if (!error.pending) return;
      while (error.pending) {
        await new Promise((resolve) => setTimeout(resolve, REFRESH_MS));
        if (!isShown()) return;
        error = await api.oomError(chosen);
      }
      if (!isShown()) return;
      fill(this.parts.trouble);
      this.drawFromRecording(error);
    } catch (error) {
      if (!this.closed) fill(this.parts.trouble, problemBanner(error));
    }
  }

  draw(error) {
    const { parts } = this;
    this.minute = chart({
      title: "Last minute before the error",
      file: `${this.file}-oom`,
      load: (signal) => api.oomFigure(error.record, signal),
      live: () => null,
      view: () => ({ from: null, to: null }),
    });
    this.minute.dataset.figure = "last-minute";
    fill(parts.verdict, verdict(error));
    fill(parts.figures, keyFigures(error));
    const loss =
      error.loss &&
      chart({
        title: "Loss before the error",
        file: `${this.file}-oom-loss`,
        load: (signal) => api.oomPart(error.record, "loss", {}, signal),
        live: () => null,
        view: () => ({ from: null, to: null }),
      });
    if (loss) loss.dataset.figure = "last-losses";
    else this.minute.classList.add("wide");
    fill(parts.chart, h("div", { class: "charts oom-charts" }, this.minute, loss));
    this.drawFromRecording(error);
    this.drawSegments(error);
    fill(parts.where, h("div", { class: "panels oom-where" }, stackPanel(error), words(error), othersAtError(error)));
    fill(parts.step, h("div", { class: "panels" }, lastGoodStep(error), counters(error)));
  }

  drawFromRecording(error) {
    fill(this.parts.remedies, remedyTable(error, this.run.framework));
    fill(this.parts.holders, holders(error, this.id));
  }

  /** Draws the segments of the rank that ran out of memory, or of the chosen rank. */
  drawSegments(error) {
    this.map?.close();
    this.segmentsOf = error.record;
    this.segmentsPart = null;
    const load = (part, parameters, signal) => api.oomPart(this.segmentsOf, part, parameters, signal);
    const show = () => {
      const { rank } = error.ranks.find(({ record }) => record === this.segmentsOf) ?? {};
      this.map.chart.querySelector("h2").textContent =
        rank === undefined ? "Segments at the error" : `Segments of rank ${rank} at the error`;
      this.map.reload();
    };
    this.map = new SegmentMap({
      file: `${this.file}-oom-segments`,
      title: "Segments at the error",
      load,
      view: () => this.segmentsPart ?? {},
      onView: (part) => {
        this.segmentsPart = part;
        this.map.reload();
      },
    });
    this.map.element.classList.add("wide");
    const drawRanks = () =>
      fill(
        this.parts.ranks,
        ranksTable(error, {
          chosen: this.segmentsOf,
          onChoose: (record) => {
            Object.assign(this, { segmentsOf: record, segmentsPart: null });
            drawRanks();
            show();
            this.parts.segments.firstElementChild.open = true;
            this.map.element.scrollIntoView({ block: "nearest" });
          },
        }),
      );
    drawRanks();
    const isRead = error.pieces !== null || error.ranks.some(({ record }) => record && record !== error.record);
    const folded = h(
      "details",
      { class: "oom-map", open: mattersWhere(error) },
      h("summary", {}, "Map of the segments"),
      h("div", { class: "charts oom-segments" }, this.map.element),
    );
    fill(this.parts.segments, isRead && folded);
    if (isRead) show();
  }

  drawEnd() {
    if (!this.list.errors.length) fill(this.parts.ended, endBanner(this.run));
  }
}

export const open = opens(OomPage);
