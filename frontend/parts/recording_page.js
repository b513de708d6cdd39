/**
 * Base of the pages that show a recording of a run: the choice of a recording, requests for a new one, deletion, and
 * the text for runs without one.
 *
 * A page extends RecordingPage and defines, besides the members of RunPage (except `build`):
 *
 *   makeView()   creates the view of a recording: {element, open(moments), update(), close()}. `moments`: answer of
 *                `/moments`
 *   viewKeys     parameters of the URL that belong to the view. Another recording starts without them.
 *   below()      an element below the view, or null. The text for runs without a recording is below it.
 *   showBelow()  hides that element while `isOpening`: the view, which is above it, would push it down
 */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { hasCudaDevice, nothingRecorded, recordingBar } from "vramscope/parts/recording_bar.js";
import { RunPage } from "vramscope/parts/run_page.js";
import { setQuery, store } from "vramscope/store.js";

const SLOW_MS = 600; // longer waits are shown

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

  showBelow() {}

  /** Whether a recording is on its way, and none is shown yet. */
  get isOpening() {
    return Boolean(this.chosen) && !this.opened && !this.failed;
  }

  close() {
    super.close();
    this.opening?.abort();
    this.view?.close();
  }

  /** Recordings without deleted ones. The server's list may still contain them briefly. */
  get recordings() {
    return this.list.recordings.filter(({ recording }) => !this.deleted.has(recording));
  }

  /** Recording to show: the chosen one, else the newest complete one. */
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
    fill(this.root, stale, head, ended, bar, trouble, this.view.element, this.below(), empty);
    this.show();
  }

  /** Replaces the view by a new one, which has sent no requests. */
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

  /** Shows the chosen recording from its beginning. */
  async show() {
    const chosen = this.chosen;
    this.shown = chosen?.recording ?? null;
    this.opening?.abort();
    this.opening = new AbortController();
    this.failed = false;
    this.draw();
    this.view.element.hidden = !chosen || !this.opened; // stays while the next one opens
    this.showBelow();
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
      this.showBelow();
      this.view.open(moments);
    } catch (error) {
      if (this.closed || this.shown !== chosen.recording) return;
      this.view.element.hidden = true;
      this.opened = false;
      this.failed = true;
      this.showBelow();
      fill(this.parts.trouble, problemBanner(error));
    } finally {
      clearTimeout(slow);
    }
  }

  drawRun() {
    this.draw();
  }

  /** Fetches the list of recordings again. Shows a new recording if none was chosen. */
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
