/**
 * Live events, by polling `/live/delta`. A hidden tab does not poll.
 *
 * Subscribers get `{event: "rows" | "scan" | "recording" | "run", data}`, and `{event: "resync"}` when events may be missing and the
 * window must be fetched again. The server's problems go into the store as `problems`, for frame.js.
 */

import { api } from "vramscope/api.js";
import { store } from "vramscope/store.js";

const POLL_MS = 700;
const TIMEOUT_MS = 10_000;
const ANCHOR_MS = 1_000;
/** A new subscription repeats the events of the last seconds, so that none is lost between a page's request and its subscription. */
const REPLAY_MS = 3_000;
/** Events of one run only. All others go to every subscriber. */
const OF_A_RUN = ["rows", "scan", "recording"];

const subscribers = new Set();

/** Ids of the newest event in the last seconds: [milliseconds, id]. Events that arrive twice do no harm: charts take later rows only. */
const trail = [];

let started = false;
let polling = null; // AbortController of the running loop
let slept = false;
let anchoring = null;
let rewind = false;

function remember(id) {
  if (!(id > (trail.at(-1)?.[1] ?? 0))) return;
  trail.push([Date.now(), id]);
  while (trail.length > 1 && trail[1][0] < Date.now() - REPLAY_MS) trail.shift();
}

function forget() {
  trail.length = 0;
  anchoring = null;
}

/** Resolves once the id of the newest event is known. Later events continue the data that a page requests after that. */
export function anchored() {
  anchoring ??= Promise.race([
    api.delta({ after: 0 }).then(
      (answer) => {
        remember(answer.last);
        setProblems(answer.problems);
      },
      () => (anchoring = null),
    ),
    new Promise((resolve) => setTimeout(resolve, ANCHOR_MS)),
  ]);
  return anchoring;
}

/** Subscribe. `runs`: ids whose rows are wanted; changes of state come for all runs. Returns a function that unsubscribes. */
export function subscribe(runs, listener) {
  const known = wanted();
  const subscriber = { runs: new Set(runs), listener };
  subscribers.add(subscriber);
  if ([...subscriber.runs].some((run) => !known.has(run))) rewind = true;
  return () => subscribers.delete(subscriber);
}

/** Start polling. A second call (after signing in) changes nothing. */
export function start() {
  if (started) return;
  started = true;
  document.addEventListener("visibilitychange", () => (document.hidden ? sleep() : wake()));
  addEventListener("pagehide", sleep);
  addEventListener("pageshow", () => !document.hidden && wake());
  if (!document.hidden) wake();
}

function wake() {
  if (polling) return;
  polling = new AbortController();
  poll(polling.signal);
}

function sleep() {
  if (!polling) return;
  polling.abort();
  polling = null;
  slept = true;
  setStatus({ state: "asleep", staleSince: null });
}

async function poll(signal) {
  if (slept) forget();
  await anchored();
  if (signal.aborted) return;
  if (slept) publish({ event: "resync" });
  slept = false;
  let answeredAt = Date.now();
  while (!signal.aborted) {
    try {
      await once(signal);
      answeredAt = Date.now();
    } catch {
      if (signal.aborted) return;
      if (store.get().live.state !== "stale") setStatus({ state: "stale", staleSince: answeredAt / 1000 });
      forget();
    }
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

/** Sends one request and publishes its events. */
async function once(signal) {
  const at = rewind ? trail[0] : trail.at(-1);
  rewind = false;
  const parameters = { after: at?.[1] ?? 0, runs: [...wanted()].join(",") };
  const answer = await api.delta(parameters, AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]));
  if (signal.aborted) return;
  setProblems(answer.problems);
  const wasStale = store.get().live.state === "stale";
  setStatus({ state: "live", staleSince: null });
  if (wasStale || (at && answer.gap)) publish({ event: "resync" });
  else for (const { event, data } of answer.events) publish(event === "gap" ? { event: "resync" } : { event, data });
  if (answer.gap) forget();
  remember(answer.last);
}

function wanted() {
  const runs = new Set();
  for (const subscriber of subscribers) for (const run of subscriber.runs) runs.add(run);
  return runs;
}

function publish(message) {
  for (const { runs, listener } of [...subscribers]) {
    if (OF_A_RUN.includes(message.event) && !runs.has(message.data.run)) continue;
    listener(message);
  }
}

function setStatus(status) {
  const before = store.get().live;
  if (before.state === status.state && before.staleSince === status.staleSince) return;
  store.set({ live: status });
}

function setProblems(problems) {
  if (!problems || JSON.stringify(problems) === JSON.stringify(store.get().problems)) return;
  store.set({ problems });
}
