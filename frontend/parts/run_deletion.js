/** The way to delete a run: a button in its head, and what the server says where it refuses. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { problemBanner } from "vramscope/parts/pieces.js";
import { twiceButton } from "vramscope/parts/twice.js";
import { go } from "vramscope/store.js";

/** Made once a page, unlike the head in which it stands: a live run's head is new with each step, and the question must stay. */
export class RunDeletion {
  constructor(run) {
    this.run = run; // its id
    this.button = twiceButton("Delete run", "Delete this run for good?", () => this.remove(), { title: "this run and all that was recorded of it" });
    this.said = h("div", { class: "refusal" });
  }

  async remove() {
    this.button.disabled = true;
    fill(this.said);
    try {
      await api.deleteRun(this.run);
      if (this.button.isConnected) go("/runs", { replace: true }); // there is nothing to come back to
    } catch (error) {
      this.button.disabled = false;
      fill(this.said, problemBanner(error));
    }
  }
}
