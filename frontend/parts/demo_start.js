/** Button that starts the demo on the server's machine. It shows the progress, and opens the run after its first step. */

import { api } from "vramscope/api.js";
import { fill, h, setText } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { go } from "vramscope/store.js";

const POLL_MS = 700;

const DEVICES = { cpu: "on the CPU", emulated_gpu: "on the emulated GPU, which computes no loss" };

/** What a demo is doing, in a sentence. `demo`: the server's answer. */
export function demoWords({ state, device, step, steps, problem }) {
  if (state === "failed") return `The demo failed: ${problem ?? "no output"}`;
  if (state === "finished") return "The demo has finished.";
  if (!step) return `PyTorch starts ${DEVICES[device] ?? ""}…`;
  return `Step ${count(step)} of ${count(steps)} ${DEVICES[device] ?? ""}`;
}

export class DemoStart {
  constructor() {
    this.button = h(
      "button",
      { class: "button primary", type: "button", onclick: () => this.start() },
      "Start the demo",
    );
    this.words = h("p", { class: "muted", role: "status" });
    this.bar = h("div");
    this.element = h("div", { class: "demo-start" }, this.button, this.words, this.bar);
    this.opens = false; // whether the run is opened after its first step
    this.look();
  }

  async start() {
    this.button.disabled = true;
    this.opens = true;
    this.path = location.pathname;
    this.words.hidden = false;
    setText(this.words, "The server starts a process…");
    try {
      this.draw(await api.startDemo());
    } catch (problem) {
      this.say(problem.message);
    }
  }

  /** Asks for the state again, while it runs and this element is shown. */
  async look() {
    try {
      this.draw(await api.demo());
    } catch (problem) {
      if (this.opens) setTimeout(() => this.look(), 4 * POLL_MS);
      else if (problem.status !== 401) this.say(problem.message);
    }
  }

  say(words) {
    this.button.disabled = false;
    this.opens = false;
    this.words.hidden = false;
    setText(this.words, words);
    fill(this.bar);
  }

  draw(demo) {
    const runs = demo.state === "running";
    this.button.disabled = runs || demo.unavailable !== null;
    const problem = runs ? null : demo.unavailable;
    setText(this.words, problem ?? (demo.state === "idle" ? "" : demoWords(demo)));
    this.words.hidden = this.words.textContent === "";
    fill(this.bar, runs && h("progress", { max: demo.steps, value: demo.step, "aria-label": "progress of the demo" }));
    if (this.opens && demo.step) {
      this.opens = false;
      if (location.pathname === this.path) go(`/runs/${demo.run_id}`);
    } else if (runs) setTimeout(() => (this.element.isConnected || this.opens) && this.look(), POLL_MS);
  }
}
