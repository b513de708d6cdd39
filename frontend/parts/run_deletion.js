/** The way to delete a run: a button in its head, and what the server says where it refuses. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { confirmButton } from "vramscope/parts/confirm_button.js";
import { go } from "vramscope/store.js";

/** Made once a page, unlike the head in which it stands: a live run's head is new with each step, and the question must stay. */
export class RunDeletion {
  constructor(run) {
    this.run = run; // its id
    this.button = confirmButton("Delete run", "Delete this run permanently?", () => this.remove(), {
      title: "this run and all its data",
    });
    this.problem = h("div", { class: "refusal" });
  }

  async remove() {
    this.button.disabled = true;
    fill(this.problem);
    try {
      await api.deleteRun(this.run);
      if (this.button.isConnected) go("/runs", { replace: true }); // there is nothing to come back to
    } catch (error) {
      this.button.disabled = false;
      fill(this.problem, problemBanner(error));
    }
  }
}
