/** Note of a run: plain text that people write. Shown in the list and in the head of a run, changed in a dialog. */

import { fill, h } from "vramscope/dom.js";

export const MAX_NOTE = 2000;

/** Button with the note in one line. The page opens the dialog when it is pressed. */
export function noteButton(row) {
  return h(
    "button",
    {
      class: "note-button",
      type: "button",
      title: row.note ? `${row.note}\n\nchange (n)` : "add a note (n)",
      "aria-label": `change the note on ${row.name}: ${row.note || "none"}`,
    },
    row.note ? row.note : h("span", { class: "add" }, "+ note"),
  );
}

/** Note in the head of a run's page. Null where there is none. */
export function noteInHead(run, edit) {
  if (!run.note) return null;
  return h(
    "div",
    { class: "run-note" },
    h("p", {}, run.note),
    h("button", { class: "button quiet small", type: "button", onclick: edit, title: "change the note (n)" }, "Edit note"),
  );
}

/**
 * Opens the dialog. `save(note)` returns a promise; a refusal is shown, and the text stays. `done()` is called when the
 * dialog is closed.
 */
export function editNote(run, save, done = () => {}) {
  if (document.querySelector("dialog[open]")) return;
  const field = h("textarea", {
    class: "note-field",
    rows: 5,
    maxlength: MAX_NOTE,
    value: run.note,
    "aria-label": `note on ${run.name}`,
    placeholder: "What was tried, and what came of it",
    onkeydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) store(event);
    },
  });
  const trouble = h("p", { class: "note-trouble", role: "alert" });
  const button = h("button", { class: "button primary", type: "submit", title: "Ctrl+Enter" }, "Save");
  async function store(event) {
    event.preventDefault();
    const note = field.value.trim();
    if (note === run.note) {
      dialog.close();
      return;
    }
    button.disabled = true;
    try {
      await save(note);
      dialog.close();
    } catch (problem) {
      button.disabled = false;
      fill(trouble, problem.message);
    }
  }
  const dialog = h(
    "dialog",
    { class: "note-dialog", "aria-label": `Note on ${run.name}`, onclose: () => (dialog.remove(), done()) },
    h("h2", {}, "Note on ", run.name),
    field,
    trouble,
    h(
      "form",
      { onsubmit: store },
      h("button", { class: "button", type: "button", onclick: () => dialog.close() }, "Cancel"),
      button,
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
}
