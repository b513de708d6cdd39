/**
 * All charts of a page share one scheduler: at most one is drawn a frame, each at most twice a second, none while hidden. Where
 * drawing is slow, on a small or a busy machine, it is done less often, so that the page still answers.
 */

const DRAW_EVERY_MS = 500;
const DRAW_AT_LEAST_EVERY_MS = 3_000;
const MOST_OF_THE_TIME = 0.1; // that one chart may take for itself

const dirty = new Set();
let timer = null; // set until the frame that it asks for is drawn: asked twice, a frame would draw two charts

/** Have a chart drawn as soon as its turn has come. */
export function requestDraw(chart) {
  dirty.add(chart);
  timer ??= setTimeout(nextFrame, 0);
}

function nextFrame() {
  requestAnimationFrame(() => {
    const now = performance.now();
    let soonest = Infinity;
    let due = null;
    for (const chart of dirty) {
      if (!chart.mayDraw()) continue;
      const wait = chart.drawnAt + every(chart) - now;
      if (wait <= 0 && (!due || chart.drawnAt < due.drawnAt)) due = chart;
      soonest = Math.min(soonest, Math.max(0, wait));
    }
    timer = dirty.size > (due ? 1 : 0) && soonest < Infinity ? setTimeout(nextFrame, due ? 0 : soonest) : null;
    if (due) {
      dirty.delete(due);
      due.draw();
    }
  });
}

const every = ({ drawMs = 0 }) => Math.min(DRAW_AT_LEAST_EVERY_MS, Math.max(DRAW_EVERY_MS, drawMs / MOST_OF_THE_TIME));

/** Does this chart wait for its turn? */
export const isWaiting = (chart) => dirty.has(chart);

/** It is gone. */
export const cancelDraw = (chart) => dirty.delete(chart);

document.addEventListener("visibilitychange", () => !document.hidden && [...dirty].forEach(requestDraw));
