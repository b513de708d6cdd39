/** A what-if job on the server, polled until it is done. */

import { api } from "vramscope/api.js";
import { h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";

const POLL_MS = 300;

/** One job and the state of its answer. */
export class WhatIfJob {
  request = new AbortController();

  constructor(recording, body, onChange) {
    Object.assign(this, { recording, body, onChange, answer: null, problem: null });
    this.start();
  }

  async start() {
    try {
      this.setAnswer(await api.askWhatIf(this.recording, this.body, this.request.signal));
    } catch (error) {
      this.fail(error);
    }
  }

  setAnswer(answer) {
    if (this.dropped) return;
    this.answer = answer;
    this.onChange();
    if (answer.state === "waiting" || answer.state === "running") this.timer = setTimeout(() => this.poll(), POLL_MS);
  }

  async poll() {
    if (this.dropped) return;
    // the server cancels the job of a hidden page; it is requested again when the page is visible
    if (document.hidden) {
      document.addEventListener("visibilitychange", () => this.dropped || this.start(), { once: true });
      return;
    }
    try {
      this.setAnswer(await api.whatIf(this.recording, this.answer.job, this.request.signal));
    } catch (error) {
      if (error.status === 404)
        this.start(); // the server cancelled it meanwhile
      else this.fail(error);
    }
  }

  fail(error) {
    if (this.dropped) return;
    this.problem = error;
    this.onChange();
  }

  cancel() {
    this.dropped = true;
    this.request.abort();
    clearTimeout(this.timer);
  }
}

/** Progress of a job. Null once it is done. */
export function jobProgress(job) {
  const { answer } = job;
  if (!answer || answer.state === "done") return null;
  if (answer.state === "failed")
    return h(
      "div",
      { class: "banner bad", role: "alert" },
      h("strong", {}, "The replay failed."),
      h("span", {}, answer.problem),
    );
  const words =
    answer.state === "waiting"
      ? answer.place > 0
        ? `waiting: ${answer.place === 1 ? "one other what-if is" : `${answer.place} other what-ifs come`} first`
        : "starting"
      : answer.compiling
        ? "compiling the simulator (once per installation, up to a minute)"
        : answer.done > 0
          ? `replaying: ${count(answer.done)} of ${count(answer.total)} done`
          : "replaying the recorded settings…";
  return h(
    "div",
    { class: "job", role: "status" },
    h("progress", {
      max: String(answer.total || 1),
      ...(answer.total > 0 ? { value: answer.done } : {}),
      "aria-label": "Progress of the replays",
    }),
    h("span", { class: "muted tabular" }, words),
  );
}
