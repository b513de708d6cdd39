/** A button for actions that cannot be undone. It acts when it is pressed twice. */

import { h } from "vramscope/dom.js";

const WAITS_MS = 4000;

/**
 * The first press shows `question` in the button; it is a text, or a function that returns one. A second press soon
 * afterwards acts.
 */
export function confirmButton(label, question, act, attributes = {}) {
  const button = h("button", { class: "button small danger", type: "button", ...attributes }, label);
  let waiting = null;
  const rest = () => {
    clearTimeout(waiting);
    waiting = null;
    button.textContent = label;
  };
  button.addEventListener("click", () => {
    if (waiting === null) {
      button.textContent = typeof question === "function" ? question() : question;
      waiting = setTimeout(rest, WAITS_MS);
      return;
    }
    rest();
    act();
  });
  return button;
}
