/** Work of a step under a plan of techniques, relative to the recorded plan. Pure. */

/** Forward passes of a step: a backward pass counts as two, and checkpointing repeats at most one. */
const PASSES = 3;
const RECOMPUTED = 1;

const passes = ({ gradient_checkpointing: checkpointing }) => PASSES + (checkpointing ? RECOMPUTED : 0);

/** Work of a step relative to the recorded one, at most: 1.33 with checkpointing where none was. */
export const workOf = (techniques, recorded) => passes(techniques) / passes(recorded);

/** Expected step time in words, from the work alone: it was not measured. */
export function timeWords(techniques, recorded) {
  const work = workOf(techniques, recorded);
  const loses = techniques.gradient_accumulation > recorded.gradient_accumulation || (techniques.no_foreach && !recorded.no_foreach);
  const times = work === 1 ? "about as long" : `about ${work.toFixed(2)} × as long`;
  return loses ? `${times}, or longer` : times;
}

/**
 * Plans that no other plan beats in both memory and work, from the least work on. `points`: `{work, peak}`; those
 * without a peak are left out.
 */
export function bestPlans(points) {
  const best = [];
  for (const point of points.filter(({ peak }) => peak !== null).sort((a, b) => a.work - b.work || a.peak - b.peak))
    if (best.length === 0 || point.peak < best.at(-1).peak) best.push(point);
  return best;
}
