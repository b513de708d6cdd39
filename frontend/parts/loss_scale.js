/**
 * Scale of the loss axis. The reader's choice is in the URL: `loss=log` or `loss=linear`. By default, the figure
 * decides.
 */

import { setQuery, store } from "vramscope/store.js";

const SCALES = ["log", "linear"];

export const lossScale = {
  chosen: () => (SCALES.includes(store.get().query.loss) ? store.get().query.loss : null),
  choose: (loss) => setQuery({ loss }),
};
