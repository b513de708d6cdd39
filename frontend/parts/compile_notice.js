/**
 * Explains a wait of more than two seconds for a recording while the server compiles its recording reader. That happens
 * once per installation and takes up to a minute.
 */

import { api } from "vramscope/api.js";
import { h } from "vramscope/dom.js";

const LONG_MS = 2_000;
const CHECK_MS = 1_500;
const WORDS = "The server compiles its recording reader. Once per installation, up to a minute.";

const pending = new Set();
let note = null;
let timer = null;

/** `answer`: promise of the requested part of a recording. */
export function showCompiling(answer) {
  pending.add(answer);
  timer ??= setTimeout(check, LONG_MS);
  const done = () => {
    pending.delete(answer);
    if (pending.size === 0) {
      clearTimeout(timer);
      timer = null;
      show(false);
    }
  };
  answer.then(done, done);
}

async function check() {
  const server = await api.server().catch(() => null);
  if (pending.size === 0) return;
  show(server?.compiling === true);
  timer = setTimeout(check, CHECK_MS);
}

function show(compiling) {
  if (compiling === (note !== null)) return;
  note?.remove();
  note = compiling ? h("div", { class: "banner warn compiling", role: "status" }, WORDS) : null;
  if (note) document.body.append(note);
}
