/** Page of a run's fragmentation: segments by event, and predictions for other allocator settings. */

import { api } from "vramscope/api.js";
import { chart } from "vramscope/chart.js";
import { h } from "vramscope/dom.js";
import { isKnown } from "vramscope/format.js";
import { hasCudaDevice } from "vramscope/parts/recording_bar.js";
import { RecordingPage } from "vramscope/parts/recording_page.js";
import { opens } from "vramscope/parts/run_page.js";
import { SegmentsView } from "vramscope/parts/segments_view.js";

class FragmentationPage extends RecordingPage {
  tab = "fragmentation";
  viewKeys = SegmentsView.VIEW;

  actions() {
    return {
      escape: () => this.view.widen(),
      back: () => this.view.step(-1),
      on: () => this.view.step(1),
    };
  }

  makeView() {
    return new SegmentsView({ file: this.file });
  }

  /** Chart of samples. Samples cover the whole run, recordings only some steps. */
  below() {
    const rank = this.run.ranks[0]?.rank ?? 0;
    this.live = chart({
      title: "Free reserved memory, from samples",
      file: `${this.file}-fragmentation`,
      load: (signal) => api.figure(this.id, "fragmentation", { points: this.live.points }, signal),
      live: (message) =>
        message.stream === "samples" && message.rank === rank
          ? message.columns.time_seconds.map((at) => at - this.run.started_seconds)
          : null,
    });
    this.live.dataset.figure = "fragmentation";
    this.live.classList.add("wide");
    this.chartOfSamples = h("div", { class: "charts fragmentation-live" }, this.live);
    this.hasSamples = isKnown(this.run.window?.last_seconds);
    this.showBelow();
    return this.chartOfSamples;
  }

  showBelow() {
    this.chartOfSamples.hidden = !hasCudaDevice(this.run) || !this.hasSamples || this.isOpening;
  }

  feed(rows) {
    this.hasSamples = true;
    this.showBelow();
    this.live.feed(rows);
  }
}

export const open = opens(FragmentationPage);
