/** Button that deletes a run, and the server's refusal. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { problemBanner } from "vramscope/parts/ui.js";
import { confirmButton } from "vramscope/parts/confirm_button.js";
import { go } from "vramscope/store.js";

/**
 * Created once per page, outside the head: a live run's head is drawn again at each step, and the confirmation must
 * stay.
 */
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
      if (this.button.isConnected) go("/runs", { replace: true }); // the run's page is gone, so it leaves the history too
    } catch (error) {
      this.button.disabled = false;
      fill(this.problem, problemBanner(error));
    }
  }
}
