/** Baseline of a run's project: the run that the others are compared with. */

import { api } from "vramscope/api.js";

export class Baseline {
  row = undefined; // row of the baseline; null: none is known, or the run is the baseline itself

  /** Fetches the baseline of the run's project. Returns whether it is known now. */
  async find(run) {
    this.row = null;
    if (run.baseline) return true;
    try {
      const { runs } = await api.runs({ project: run.project, limit: 50 });
      this.row = runs.find((row) => row.baseline) ?? null;
      return true;
    } catch {
      return false; // no chip of the baseline
    }
  }

  /** Makes the run the baseline, or ends that. Returns whether it is one now. Throws Problem. */
  async toggle(run) {
    const { baseline } = await api.changeRun(run.run_id, { baseline: !run.baseline });
    return baseline;
  }
}
