/** Commands to copy: trainings on this and on other machines, unsent data, a server in a container. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { snippet } from "vramscope/parts/ui.js";
import { serverAddress, startLines } from "vramscope/parts/welcome.js";
import { store } from "vramscope/store.js";

const LOOPBACK = ["127.0.0.1", "localhost", "[::1]"];

/** Commands for a training on another machine, as text to paste into its shell.
 *
 *  address  address of this page
 *  host     name of the server's machine; null is unknown
 *  token    token of the training; null where none is needed or known
 */
export function otherMachineLines(address, host, token) {
  const { hostname, port: given, protocol } = new URL(address);
  const port = given || (protocol === "https:" ? "443" : "80");
  const lines = startLines(address);
  const forwards = LOOPBACK.includes(hostname);
  return [
    lines.install,
    forwards && `ssh -f -N -L ${port}:127.0.0.1:${port} ${host ?? "SERVER"}`,
    token && `export VRAMSCOPE_TOKEN=${token}`,
    lines.command,
  ]
    .filter(Boolean)
    .join("\n");
}

export class StartLines {
  constructor() {
    this.element = h("section", { class: "card wide" });
    this.host = null;
    this.token = null;
    this.status = h("span", { class: "muted", role: "status" });
    this.draw();
  }

  /** The name of the server's machine is known. */
  setHost(host) {
    if (host === this.host) return;
    this.host = host;
    this.draw();
  }

  draw() {
    const lines = startLines();
    const unsent = lines.server ? `vramscope sync --server ${lines.server}` : "vramscope sync";
    fill(
      this.element,
      h("header", {}, h("h2", {}, "Getting started")),
      h(
        "div",
        { class: "pad stack" },
        part("A demo, a small training of 300 steps. It needs PyTorch on the server’s machine, and no GPU:", snippet(lines.demo)),
        part("A training, without code changes:", snippet(`${lines.install}\n${lines.command}`)),
        this.otherMachine(),
        part("Send data that was kept on disk while the server was down:", snippet(unsent)),
        h(
          "details",
          {},
          h("summary", {}, "Another server, with Docker"),
          part(
            "In a checkout of vramscope, with SQLite. The log shows the first token once:",
            snippet("docker compose up -d server\ndocker compose logs server"),
          ),
          part(
            "With PostgreSQL:",
            snippet("docker compose up -d server-postgres\ndocker compose logs server-postgres"),
          ),
        ),
      ),
    );
  }

  otherMachine() {
    const { required, role } = store.get().session ?? {};
    const words = LOOPBACK.includes(location.hostname)
      ? `A training on another machine. This server was reached at ${serverAddress()}, which only works on its own machine. These lines forward the port by SSH`
      : "A training on another machine";
    const text = snippet(otherMachineLines(serverAddress(), this.host, this.token));
    if (!required || this.token) return part(`${words}:`, text);
    if (role !== "admin") return part(`${words}. Set VRAMSCOPE_TOKEN there to a token with the role write:`, text);
    const make = async () => {
      try {
        this.token = (await api.createToken("another machine", "write")).token;
        this.draw();
      } catch (error) {
        this.status.textContent = error.message;
      }
    };
    return part(
      `${words}. The training needs a token:`,
      h("button", { class: "button", type: "button", onclick: make }, "Create a token and show the lines"),
      this.status,
    );
  }
}

function part(words, ...content) {
  return h("div", {}, h("p", { class: "muted" }, words), content);
}
