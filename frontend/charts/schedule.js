/**
 * One scheduler for all charts of a page. It draws at most one chart per frame, each at most twice a second, and none
 * while the page is hidden. Where drawing is slow, it draws less often, so that the page stays responsive.
 */

const DRAW_EVERY_MS = 500;
const DRAW_AT_LEAST_EVERY_MS = 3_000;
const MOST_OF_THE_TIME = 0.1; // share of the time that one chart may use

const dirty = new Set();
let timer = null; // pending until its frame is drawn: two requests would draw two charts in one frame

/** Requests a drawing of the chart. */
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

/** True if the chart waits to be drawn. */
export const isWaiting = (chart) => dirty.has(chart);

/** Cancels a requested drawing. */
export const cancelDraw = (chart) => dirty.delete(chart);

document.addEventListener("visibilitychange", () => !document.hidden && [...dirty].forEach(requestDraw));
