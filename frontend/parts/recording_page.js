/**
 * What the pages of a run have in common that show one of its recordings: which there are, how to ask the run for another and
 * delete one, and what is said where there is none.
 *
 * A page extends RecordingPage and says, besides what it says as a RunPage (its `build` is here):
 *
 *   makeView()   what shows a recording: {element, open(told), update(), close()}; `told` are the recording's moments
 *   viewKeys     what of the URL belongs to that view: another recording begins without
 *   below()      an element that stands below, recording or not
 */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { hasCudaDevice, nothingRecorded, recordingBar } from "vramscope/parts/recording_bar.js";
import { RunPage } from "vramscope/parts/run_page.js";
import { setQuery, store } from "vramscope/store.js";

const SLOW_MS = 600; // what takes longer is told

export class RecordingPage extends RunPage {
  refreshAfter = "recording";
  refreshIfChanged = ["recordings"];
  deleted = new Set();

  async fetch(name) {
    this.list = await api.recordings(name);
  }

  below() {
    return null;
  }

  close() {
    super.close();
    this.opening?.abort();
    this.view?.close();
  }

  /** What is deleted is not shown, nor asked about, from then on; the list says it a moment later. */
  get recordings() {
    return this.list.recordings.filter(({ recording }) => !this.deleted.has(recording));
  }

  /** The recording that is shown: the one chosen, else the newest that is whole. */
  get chosen() {
    const complete = this.recordings.filter((recording) => recording.whole);
    return complete.find((recording) => recording.recording === store.get().query.recording) ?? complete[0] ?? null;
  }

  build() {
    const { stale, head, ended, bar, trouble, empty } = this.divide(
      "stale",
      "head",
      "ended",
      "bar",
      "trouble",
      "empty",
    );
    this.view = this.makeView();
    fill(this.root, stale, head, ended, bar, trouble, empty, this.view.element, this.below());
    this.show();
  }

  /** A view that has asked nothing, in the place of the one that is there. */
  replaceView() {
    const { element } = this.view;
    this.view.close();
    this.view = this.makeView();
    element.replaceWith(this.view.element);
    this.opened = false;
  }

  update() {
    if (!this.id) return;
    if (this.chosen?.recording !== this.shown) this.show();
    else this.view.update();
  }

  /** Show the chosen recording from its beginning. */
  async show() {
    const chosen = this.chosen;
    this.shown = chosen?.recording ?? null;
    this.opening?.abort();
    this.opening = new AbortController();
    this.draw();
    this.view.element.hidden = !chosen || !this.opened; // until it has something to show; then it stays while the next is opened
    fill(this.parts.trouble);
    if (!chosen) return;
    const opening = h(
      "div",
      { class: "job", role: "status" },
      h("progress", { "aria-hidden": "true" }),
      h("span", { class: "muted" }, "opening the recording…"),
    );
    const slow = setTimeout(() => this.shown === chosen.recording && fill(this.parts.trouble, opening), SLOW_MS);
    try {
      const moments = await api.recording(chosen.recording, "moments", {}, this.opening.signal);
      if (this.closed || this.shown !== chosen.recording) return;
      fill(this.parts.trouble);
      this.view.element.hidden = false;
      this.opened = true;
      this.view.open(moments);
    } catch (error) {
      if (this.closed || this.shown !== chosen.recording) return;
      this.view.element.hidden = true;
      this.opened = false;
      fill(this.parts.trouble, problemBanner(error));
    } finally {
      clearTimeout(slow);
    }
  }

  drawRun() {
    this.draw();
  }

  /** Which recordings there are, anew. A new one is shown if none was chosen. */
  async refetch() {
    this.list = await api.recordings(this.id);
    if (this.closed) return;
    if (this.chosen?.recording !== this.shown) {
      this.requested = false;
      this.show();
    } else this.draw();
  }

  async requestRecording() {
    try {
      await api.askForRecording(this.id, {});
      this.requested = true;
      fill(this.parts.trouble);
    } catch (error) {
      fill(this.parts.trouble, problemBanner(error));
    }
    this.draw();
  }

  async remove(recording) {
    if (!confirm("Delete this recording? This cannot be undone.")) return;
    this.deleted.add(recording);
    this.replaceView();
    this.choose(null);
    try {
      await api.deleteRecording(recording);
    } catch (error) {
      this.deleted.delete(recording);
      await this.show();
      fill(this.parts.trouble, problemBanner(error));
    }
    this.refresh();
  }

  choose(recording, options) {
    setQuery({ ...Object.fromEntries(this.viewKeys.map((name) => [name, null])), recording }, options);
  }

  draw() {
    const { run, recordings } = this;
    this.drawHead();
    const several = run.ranks.length > 1;
    this.put("bar", [recordings, this.shown, run.state, this.requested, several], () =>
      recordingBar(recordings, {
        chosen: this.shown,
        several,
        live: run.state === "running" && hasCudaDevice(run),
        requested: this.requested,
        onChoose: (recording) => this.choose(recording, { push: true }),
        onRequest: () => this.requestRecording(),
        onDelete: (recording) => this.remove(recording),
      }),
    );
    this.put(
      "empty",
      [recordings, run.state, run.ranks.length],
      () => !this.chosen && nothingRecorded(run, recordings),
    );
  }
}
