/** Fields that change a run in the list: its tags in place, its note in a dialog. */

import { api } from "vramscope/api.js";
import { editNote } from "vramscope/parts/note_editor.js";
import { editTags } from "vramscope/parts/tags_editor.js";

/** Opens the field of the button that was pressed, if it has one. `page`: the RunsPage. */
export function openField({ target }, page) {
  if (target.closest(".note-button")) openNote(target.closest("tr"), page);
  const button = target.closest(".tags-button");
  if (!button) return;
  const entry = page.rows.get(button.closest("tr").dataset.run);
  editTags(
    button.closest("td"),
    entry.row,
    (tags) => page.change(entry.row, { tags }),
    () => page.drawAgain(entry, ".tags-button"),
  );
}

/** Opens the note of a row of the table. */
export function openNote(element, page) {
  const entry = page.rows.get(element.dataset.run);
  if (!entry) return; // the head of a group
  const save = async (note) => {
    await api.changeRun(entry.row.run_id, { note });
    page.load();
  };
  editNote(entry.row, save, () => entry.element?.querySelector(".note-button, .name a")?.focus({ preventScroll: true }));
}
