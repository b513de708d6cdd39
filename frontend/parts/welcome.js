/** Text for a server without runs: how to send the first run to this server. */

import { h } from "vramscope/dom.js";
import { DemoStart } from "vramscope/parts/demo_start.js";
import { errorText } from "vramscope/parts/error_text.js";
import { snippet } from "vramscope/parts/ui.js";

/** Address of this server, for a training on this or another machine. */
export const serverAddress = () => location.origin;

const DEMO_STEPS = 300;

/** Commands that start a watched training. The address is left out if it is the agent's default. */
export function startLines(address = serverAddress()) {
  const plain = address === "http://127.0.0.1:8265" || address === "http://localhost:8265";
  const option = plain ? "" : ` --server ${address}`;
  const server = plain ? null : `server="${address}"`;
  return {
    server: plain ? null : address,
    install: "pip install vramscope",
    demo: `vramscope demo --steps ${DEMO_STEPS}${option}`,
    attach: `from vramscope import agent\nagent.attach(${["trainer", server].filter(Boolean).join(", ")})`,
    attachLoop: `from vramscope import agent\nagent.attach(${server ?? ""})`,
    command: `vramscope run${option} -- python train.py`,
    compared: `vramscope run${option} --name baseline -- python train.py\nvramscope run${option} --name bf16 -- python train.py --bf16`,
  };
}

/** `token`: whether the server requires one. */
export function welcome({ token }) {
  const lines = startLines();
  return h(
    "section",
    { class: "card welcome" },
    h("div", { class: "whole" }, h("h1", {}, "No runs yet"), h("p", { class: "muted" }, "Start a training. Its run appears here.")),
    token &&
      h(
        "div",
        { class: "whole" },
        h("h2", {}, "Token"),
        h(
          "p",
          {},
          "This server requires a token with the role write. Create one in ",
          h("a", { href: "/settings" }, "Settings"),
          " and set it in the training’s environment:",
        ),
        snippet("export VRAMSCOPE_TOKEN=…"),
      ),
    h(
      "div",
      {},
      h("h2", {}, "Try the demo"),
      h("p", {}, "A small training of 300 steps on the server’s machine. It needs PyTorch there, and no GPU."),
      new DemoStart().element,
      h("p", {}, "Or in a terminal of that machine:"),
      snippet(lines.demo),
    ),
    h(
      "div",
      { class: "own" },
      h("h2", {}, "Watch your own training"),
      h(
        "ol",
        {},
        h("li", {}, h("p", {}, "On the training machine:"), snippet(lines.install)),
        h(
          "li",
          {},
          h("p", {}, "Without code changes:"),
          snippet(lines.command),
          h("p", {}, "Or with a Trainer, an Accelerator, a model or an optimizer:"),
          snippet(lines.attach),
          h("p", {}, "Or before a plain loop:"),
          snippet(lines.attachLoop),
        ),
      ),
    ),
    h(
      "div",
      {},
      h("h2", {}, "Explain an error or a file"),
      h("p", {}, "Paste an out-of-memory error of a training that was not watched:"),
      errorText({ heading: null }),
      h("p", {}, "A snapshot file of PyTorch’s allocator: drop it on the page ", h("a", { href: "/snapshots" }, "Snapshots"), "."),
    ),
    h(
      "p",
      { class: "waiting whole", role: "status" },
      h("span", { class: "pulse", "aria-hidden": "true" }),
      "waiting for the first run…",
    ),
  );
}

/** Text for a search without a match. */
export const noMatch = () =>
  h(
    "section",
    { class: "card empty" },
    h("h2", {}, "No run matches"),
    h("p", {}, "No stored run matches the search. ", h("a", { href: "/runs" }, "Show all runs")),
  );
