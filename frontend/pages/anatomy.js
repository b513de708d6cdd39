/** Page of a run's recordings: memory by event and by line, ways to lower the peak, and all events. */

import { AnatomyView } from "vramscope/parts/anatomy_view.js";
import { EventsTable } from "vramscope/parts/events_table.js";
import { hasCudaDevice } from "vramscope/parts/recording_bar.js";
import { RecordingPage } from "vramscope/parts/recording_page.js";
import { RecordingViews, movesOf } from "vramscope/parts/recording_views.js";
import { opens } from "vramscope/parts/run_page.js";
import { setQuery, store } from "vramscope/store.js";

class AnatomyPage extends RecordingPage {
  tab = "anatomy";
  viewKeys = [...AnatomyView.VIEW, ...EventsTable.VIEW];

  actions() {
    return {
      escape: () => setQuery(store.get().query.from ? { from: null, to: null } : { allocation: null, focus: null }),
      back: () => this.view.pan(-0.5),
      on: () => this.view.pan(0.5),
      ...movesOf(() => this.view),
    };
  }

  /** Timeline and flamegraph. A live run can be asked for a recording with stacks. */
  anatomy() {
    const canRecord = () => this.run.state === "running" && hasCudaDevice(this.run) && !this.requested;
    return new AnatomyView({
      file: this.file,
      capacity: () => this.run.capacity_bytes,
      onRecord: () => (canRecord() ? () => this.requestRecording() : null),
    });
  }

  makeView() {
    return new RecordingViews([["timeline", "Timeline and flamegraph", () => this.anatomy()]]);
  }
}

export const open = opens(AnatomyPage);
