/** Keyboard shortcuts. One table defines the keys and the help page. */

import { h } from "vramscope/dom.js";
import { go, togglePause } from "vramscope/store.js";

/** [keys, description, name of an action that the page handles, or a function]. */
const KEYS = [
  ["?", "show or hide this help", () => toggleHelp()],
  ["/", "search", () => focusSearch()],
  ["w", "timeline of a recording: closer", "closer"],
  ["s", "timeline of a recording: wider", "wider"],
  ["a", "timeline of a recording: to the left", "left"],
  ["d", "timeline of a recording: to the right", "right"],
  ["g r", "go to Runs", () => go("/runs")],
  ["g c", "go to Compare", () => go("/compare")],
  ["g s", "go to Settings", () => go("/settings")],
  ["space", "pause or resume live data", togglePause],
  ["f", "show the whole run and follow new data", "follow"],
  ["b", "make this run the baseline, or undo it", "baseline"],
  ["[", "previous step (moves the window)", "back"],
  ["]", "next step", "on"],
  ["x", "axis: time, steps, or time of day", "axis"],
  ["j", "list of runs: next run", "next"],
  ["k", "list of runs: previous run", "previous"],
  ["x", "list of runs: select the run", "select"],
  ["t", "list of runs: change the run’s tags", "tags"],
  ["n", "change the note on a run", "note"],
  ["p", "list of runs: pin the run", "pin"],
  ["a", "list of runs: actions for the selected runs", "actions"],
  ["v", "list of runs: columns, groups and order", "view"],
  ["s", "smooth or measured lines", "smooth"],
  ["d", "dark or light theme", "theme"],
  ["e", "export the view as CSV", "export"],
  ["Esc", "reset the zoom, close menus", "escape"],
];

const actions = new Map();

/**
 * Registers a handler of an action ("follow", "export", ...) while a page is shown. Returns a function that removes it.
 */
export function onAction(name, answer) {
  actions.set(name, answer);
  return () => actions.get(name) === answer && actions.delete(name);
}

let pending = null;

export function start() {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && closeHelp()) return;
    const target = event.target;
    if (
      target instanceof HTMLElement &&
      (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
    ) {
      if (event.key === "Escape") target.blur();
      if (target.type !== "checkbox") return;
    }
    // Controls handle space themselves.
    if (
      event.key === " " &&
      target instanceof HTMLElement &&
      target.closest("button, a, summary, input, [role=button]")
    )
      return;
    const name = event.key === " " ? "space" : event.key === "Escape" ? "Esc" : event.key;
    const combined = pending ? `${pending} ${name}` : name;
    pending = null;
    const rows = KEYS.filter(([keys]) => keys === combined);
    if (rows.length > 0) {
      // a key may have a meaning on one page and another on a second one
      const action = rows.map(([, , act]) => (typeof act === "string" ? actions.get(act) : act)).find(Boolean);
      if (!action) return;
      event.preventDefault();
      action();
    } else if (KEYS.some(([keys]) => keys.startsWith(`${combined} `))) {
      pending = combined;
      setTimeout(() => (pending = null), 1200);
    }
  });
}

function focusSearch() {
  const field = [...document.querySelectorAll("[data-search]")].find((one) => one.checkVisibility());
  if (field) {
    field.focus();
    field.select?.();
  } else {
    go("/runs");
    requestAnimationFrame(() => document.querySelector("[data-search]")?.focus());
  }
}

function closeHelp() {
  const open = document.querySelector("dialog.help");
  open?.close();
  return Boolean(open);
}

export function toggleHelp() {
  if (closeHelp()) return;
  const dialog = h(
    "dialog",
    { class: "help", "aria-label": "Keyboard" },
    h("h2", {}, "Keyboard"),
    h(
      "dl",
      { class: "keys" },
      KEYS.map(([keys, meaning]) => [
        h(
          "dt",
          {},
          keys.split(" ").map((key) => h("kbd", {}, key)),
        ),
        h("dd", {}, meaning),
      ]),
    ),
    h("p", { class: "muted" }, "Drag in a chart to zoom. Double-click to reset."),
    h("form", { method: "dialog" }, h("button", { class: "button" }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}
