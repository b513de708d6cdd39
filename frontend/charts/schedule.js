/** All charts of a page share one scheduler: at most one is drawn a frame, each at most twice a second, none while hidden. */

const DRAW_EVERY_MS = 500;

const dirty = new Set();
let timer = null; // set until the frame that it asks for is drawn: asked twice, a frame would draw two charts

/** Have a chart drawn as soon as its turn has come. */
export function wantDraw(chart) {
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
      const wait = chart.drawnAt + DRAW_EVERY_MS - now;
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

/** Does this chart wait for its turn? */
export const waits = (chart) => dirty.has(chart);

/** It is gone. */
export const forget = (chart) => dirty.delete(chart);

document.addEventListener("visibilitychange", () => !document.hidden && [...dirty].forEach(wantDraw));
