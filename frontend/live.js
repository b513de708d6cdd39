/**
 * Live events: one EventSource for the whole browser, however many tabs are open.
 *
 * A browser keeps six connections to a host over HTTP/1.1; a seventh tab with its own stream would hang for good. So
 * the visible tabs elect a leader by a Web Lock; the leader holds the one stream and passes its events on over a
 * BroadcastChannel. A hidden tab lets go. Where Web Locks are withheld (plain HTTP from another machine) or a proxy
 * holds the stream back, each tab polls `/live/delta`, which carries the same events and keeps no connection open; the
 * stream is tried again now and then, for it may have been a server that was busy.
 *
 * What subscribers get: `{event: "rows" | "scan" | "recording" | "run", data}`, and `{event: "resync"}` when something may have been missed
 * and the window must be fetched again. What is wrong with the server goes into the store as `problems`, for frame.js.
 */

import { api, liveUrl } from "vramscope/api.js";
import { sameSet } from "vramscope/series.js";
import { store } from "vramscope/store.js";

const LOCK = "vramscope-live";
const WANT_EVERY_MS = 5_000;
const WANT_EXPIRES_MS = 20_000;
const SILENCE_MS = 12_000; // the server says every 8 s that it is alive
const OPEN_WITHIN_MS = 5_000;
const POLL_MS = 700;
const AGAIN_MS = 10_000; // after so long of polling the stream is tried again; doubled each time, up to
const AGAIN_AT_MOST_MS = 300_000;
const REPLAY_MS = 3_000;

const tab = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`;
const channel = new BroadcastChannel("vramscope-live");
const subscribers = new Set();
/** What each tab wants, as far as we heard: tab -> {runs, heard}. */
const wants = new Map();

let leading = null; // {close()} while this tab holds the stream
let release = null; // lets go of the lock
let waiting = null; // AbortController of the pending lock request
let awake = false;
let slept = false;

/**
 * The newest event id that this tab knows, and how it came to be in the last seconds: [moment, id]. A stream that is
 * opened anew, for other runs or by another tab, begins a little before: so nothing falls between the window that a
 * page fetched and the first event that reaches it. What comes twice does no harm, charts take only later rows.
 */
const trail = [];

function note(id) {
  if (!(id > (trail.at(-1)?.[1] ?? 0))) return;
  trail.push([Date.now(), id]);
  while (trail.length > 1 && trail[1][0] < Date.now() - REPLAY_MS) trail.shift();
}

const replayFrom = () => trail[0]?.[1] ?? null;

let anchoring = null;

/** Resolves once it is known where the events stand; what a page fetches after that, later events go on from. */
export function anchored() {
  anchoring ??= Promise.race([
    api.delta({ after: 0 }).then(
      (answer) => {
        note(answer.last);
        setProblems(answer.problems);
      },
      () => (anchoring = null),
    ),
    new Promise((resolve) => setTimeout(resolve, 1_000)),
  ]);
  return anchoring;
}

/** Listen. `runs`: ids whose rows are wanted; changes of state come for all runs. Returns a function that stops. */
export function subscribe(runs, listener) {
  const subscriber = { runs: new Set(runs), listener };
  subscribers.add(subscriber);
  announce();
  return () => {
    subscribers.delete(subscriber);
    announce();
  };
}

/** For tests and the help page: does this tab hold the stream? */
export const isLeader = () => leading !== null;

let started = false;

/** Begin to listen; a second call (after signing in) changes nothing. */
export function start() {
  if (started) return;
  started = true;
  channel.onmessage = ({ data }) => hear(data);
  document.addEventListener("visibilitychange", () => (document.hidden ? sleep() : wake()));
  addEventListener("pagehide", sleep);
  addEventListener("pageshow", () => !document.hidden && wake());
  setInterval(announce, WANT_EVERY_MS);
  if (!document.hidden) wake();
}

async function wake() {
  if (awake) return;
  awake = true;
  announce();
  channel.postMessage({ kind: "who" });
  if (slept) {
    trail.length = 0;
    anchoring = null;
  }
  await anchored();
  if (!awake || leading || waiting) return;
  if (slept) tellAll({ event: "resync" });
  slept = false;
  if (!navigator.locks) {
    leading = poll(() => myRuns());
    return;
  }
  waiting = new AbortController();
  navigator.locks
    .request(LOCK, { signal: waiting.signal }, () => {
      waiting = null;
      if (!awake) return undefined;
      leading = stream();
      return new Promise((resolve) => (release = resolve));
    })
    .catch((error) => {
      if (error.name !== "AbortError") throw error;
    });
}

function sleep() {
  if (!awake) return;
  awake = false;
  slept = true;
  waiting?.abort();
  waiting = null;
  leading?.close();
  leading = null;
  release?.();
  release = null;
  channel.postMessage({ kind: "bye", tab });
  setStatus({ state: "asleep", staleSince: null });
}

function myRuns() {
  const runs = new Set();
  for (const subscriber of subscribers) for (const run of subscriber.runs) runs.add(run);
  return runs;
}

function announce() {
  if (!awake) return;
  const runs = [...myRuns()];
  hearWant(tab, runs);
  channel.postMessage({ kind: "want", tab, runs });
}

function hearWant(from, runs) {
  wants.set(from, { runs: new Set(runs), heard: Date.now() });
  leading?.retune?.();
}

function allWanted() {
  const runs = myRuns();
  for (const [from, want] of wants) {
    if (Date.now() - want.heard > WANT_EXPIRES_MS) wants.delete(from);
    else for (const run of want.runs) runs.add(run);
  }
  return runs;
}

function hear(message) {
  if (message.kind === "want") hearWant(message.tab, message.runs);
  else if (message.kind === "bye") {
    wants.delete(message.tab);
    leading?.retune?.();
  } else if (message.kind === "who") {
    announce();
    if (leading) {
      channel.postMessage({ kind: "status", status: store.get().live });
      channel.postMessage({ kind: "problems", problems: store.get().problems });
    }
  } else if (!awake || leading) return;
  else if (message.kind === "event") {
    note(message.id);
    tellAll(message.message);
  }
  else if (message.kind === "status") store.set({ live: message.status });
  else if (message.kind === "problems") setProblems(message.problems);
}

function tellAll(message) {
  for (const { runs, listener } of [...subscribers]) {
    if (["rows", "scan", "recording"].includes(message.event) && !runs.has(message.data.run)) continue;
    listener(message);
  }
}

function setStatus(status) {
  const before = store.get().live;
  if (before.state === status.state && before.staleSince === status.staleSince) return;
  store.set({ live: status });
  if (leading && navigator.locks) channel.postMessage({ kind: "status", status });
}

function setProblems(problems) {
  if (!problems || JSON.stringify(problems) === JSON.stringify(store.get().problems)) return;
  store.set({ problems });
  if (leading && navigator.locks) channel.postMessage({ kind: "problems", problems });
}

function pass(message, id = null) {
  note(id);
  tellAll(message);
  if (navigator.locks && [...wants.keys()].some((other) => other !== tab)) channel.postMessage({ kind: "event", message, id });
}

/** The leader's stream. Falls back to polling where events do not come through. */
function stream() {
  let source = null;
  let runs = new Set();
  let heard = Date.now();
  let opened = false;
  let closed = false;
  let fallback = null;
  let retryIn = 500;
  let againIn = AGAIN_MS;
  let retryTimer = null;
  let retuneTimer = null;

  function open() {
    source?.close();
    runs = allWanted();
    opened = false;
    const openedAt = Date.now();
    source = new EventSource(liveUrl({ runs: [...runs].join(","), after: replayFrom() }));
    const mine = source;
    mine.onopen = () => {
      if (mine !== source) return;
      opened = true;
      heard = Date.now();
      if (fallback) return; // a proxy may let it open and hold back what comes: polling goes on until something has come
      retryIn = 500;
      const wasStale = store.get().live.state === "stale";
      setStatus({ state: "live", staleSince: null });
      if (wasStale) pass({ event: "resync" });
    };
    mine.onerror = () => {
      if (mine !== source || closed) return;
      if (fallback) tryAgain();
      else lost();
    };
    for (const name of ["rows", "run", "scan", "recording", "gap"]) {
      mine.addEventListener(name, (event) => {
        if (mine !== source) return;
        came();
        if (name === "gap") pass({ event: "resync" });
        else pass({ event: name, data: JSON.parse(event.data) }, Number(event.lastEventId));
      });
    }
    mine.addEventListener("alive", (event) => {
      if (mine !== source) return;
      came();
      setProblems(JSON.parse(event.data).problems);
    });
    setTimeout(() => {
      // Never opened although the server answers by polling: something between holds the stream back.
      if (mine !== source || opened || closed || Date.now() - openedAt < OPEN_WITHIN_MS - 50) return;
      if (fallback) tryAgain();
      else probe();
    }, OPEN_WITHIN_MS);
  }

  /** Something came by the stream: that it comes through is known now, and no tab needs to ask any more. */
  function came() {
    heard = Date.now();
    if (!fallback) return;
    fallback.close();
    fallback = null;
    againIn = AGAIN_MS;
    const missed = store.get().live.state === "stale";
    setStatus({ state: "live", staleSince: null });
    if (missed) pass({ event: "resync" });
    if (!sameSet(allWanted(), runs)) open();
  }

  /** Polling goes on meanwhile. */
  function tryAgain() {
    source?.close();
    source = null;
    clearTimeout(retryTimer);
    retryTimer = setTimeout(() => !closed && open(), againIn);
    againIn = Math.min(AGAIN_AT_MOST_MS, againIn * 2);
  }

  /**
   * The stream broke: tell since when. The browser reopens it by itself with Last-Event-ID, unless the server refused;
   * then we do, a little later each time.
   */
  function lost() {
    if (store.get().live.state !== "stale") setStatus({ state: "stale", staleSince: heard / 1000 });
    opened = false;
    trail.length = 0; // the resync fetches what was missed
    if (source.readyState === EventSource.CONNECTING) return;
    source.close();
    source = null;
    clearTimeout(retryTimer);
    retryTimer = setTimeout(() => !closed && open(), retryIn);
    retryIn = Math.min(5_000, retryIn * 2);
  }

  /** Not even a sign of life came: if the server answers other requests, something between holds the stream back. */
  async function probe() {
    const before = heard;
    try {
      await api.delta({ after: 0 });
      if (closed || fallback || heard !== before) return;
      fallback = poll(allWanted);
      tryAgain();
      pass({ event: "resync" });
    } catch {
      if (!closed && source) {
        source.close(); // the server does not answer at all: do not wait for the browser to notice
        lost();
      }
    }
  }

  const watch = setInterval(() => {
    if (closed || !source || !opened || Date.now() - heard <= SILENCE_MS) return;
    if (fallback) tryAgain();
    else probe();
  }, 2_000);

  open();
  return {
    /** Somebody wants other runs: open the stream anew for all of them, once things are quiet. */
    retune() {
      if (closed || fallback || retuneTimer) return;
      retuneTimer = setTimeout(() => {
        retuneTimer = null;
        if (!closed && !fallback && source && !sameSet(allWanted(), runs)) open();
      }, 50);
    },
    close() {
      closed = true;
      clearInterval(watch);
      clearTimeout(retryTimer);
      clearTimeout(retuneTimer);
      source?.close();
      fallback?.close();
    },
  };
}

/** The same events by asking again and again. */
function poll(wanted) {
  let closed = false;
  let last = replayFrom();
  let heard = Date.now();
  (async () => {
    while (!closed) {
      try {
        const first = last === null;
        const answer = await api.delta({ after: last ?? 0, runs: [...wanted()].join(",") });
        if (closed) return;
        heard = Date.now();
        setProblems(answer.problems);
        const back = store.get().live.state === "stale";
        setStatus({ state: "polling", staleSince: null });
        if (back || (answer.gap && !first)) pass({ event: "resync" });
        else if (!first) for (const { id, event, data } of answer.events) pass(event === "gap" ? { event: "resync" } : { event, data }, id);
        last = answer.last ?? last ?? 0;
      } catch {
        if (closed) return;
        if (store.get().live.state !== "stale") setStatus({ state: "stale", staleSince: heard / 1000 });
        last = null;
      }
      await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    }
  })();
  return { close: () => (closed = true) };
}
