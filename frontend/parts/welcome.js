/** Text for a server without runs: how to send the first run to this server. */

import { h } from "vramscope/dom.js";
import { snippet } from "vramscope/parts/ui.js";

/** Address of this server, for a training on this or another machine. */
export const serverAddress = () => location.origin;

/** Commands that start a watched training. The address is left out if it is the agent's default. */
export function startLines(address = serverAddress()) {
  const plain = address === "http://127.0.0.1:8265" || address === "http://localhost:8265";
  return {
    server: plain ? null : address,
    install: "pip install vramscope",
    attach: `from vramscope import agent\nagent.attach(trainer${plain ? "" : `, server="${address}"`})`,
    command: `vramscope run ${plain ? "" : `--server ${address} `}-- python train.py`,
  };
}

/** `token`: whether the server requires one. */
export function welcome({ token }) {
  const lines = startLines();
  return h(
    "section",
    { class: "card welcome" },
    h("div", {}, h("h1", {}, "No runs yet"), h("p", { class: "muted" }, "Start a training. Its run appears here.")),
    h(
      "ol",
      {},
      h("li", {}, h("p", {}, "On the training machine:"), snippet(lines.install)),
      token &&
        h(
          "li",
          {},
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
        "li",
        {},
        h("p", {}, "One line in the script, with a Trainer, an Accelerator, a model, an optimizer, or no argument:"),
        snippet(lines.attach),
      ),
      h("li", {}, h("p", {}, "Or without code changes:"), snippet(lines.command)),
    ),
    h(
      "p",
      { class: "waiting", role: "status" },
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
