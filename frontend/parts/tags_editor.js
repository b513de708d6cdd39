/** Tags of a run in the list, and the field that changes them in place. */

import { fill, h } from "vramscope/dom.js";

/** Tags of a text with commas, each once. */
export const tagsOf = (text) => [
  ...new Set(
    text
      .split(",")
      .map((tag) => tag.trim())
      .filter(Boolean),
  ),
];

const MOST_SHOWN = 2; // more would be cut to single letters

/** Chips of a run's tags in a button. The page opens the field when it is pressed. */
export function tagsButton(row) {
  return h(
    "button",
    {
      class: "tags-button",
      type: "button",
      title: row.tags.length ? `${row.tags.join(", ")}: change (t)` : "add tags (t)",
      "aria-label": `change the tags of ${row.name}: ${row.tags.join(", ") || "none"}`,
    },
    row.tags.slice(0, row.tags.length > MOST_SHOWN ? 1 : MOST_SHOWN).map((tag) => h("span", { class: "chip tag" }, tag)),
    row.tags.length > MOST_SHOWN && h("span", { class: "chip tag more-tags" }, `+${row.tags.length - 1}`),
    row.tags.length === 0 && h("span", { class: "add" }, "+ tag"),
  );
}

/**
 * Replaces the content of a cell by a field. `save(tags)` is called once, if the tags changed; `done()` when the field
 * is left. Enter saves, Escape does not.
 */
export function editTags(cell, row, save, done) {
  let open = true;
  const leave = (store) => {
    if (!open) return;
    open = false;
    const tags = tagsOf(field.value);
    fill(cell, tagsButton(row));
    if (store && tags.join() !== row.tags.join()) save(tags);
    done();
  };
  const field = h("input", {
    type: "text",
    class: "tag-field",
    value: row.tags.join(", "),
    list: "known-tags",
    placeholder: "tags, with commas",
    "aria-label": `tags of ${row.name}, with commas`,
    onblur: () => leave(true),
    onkeydown: (event) => {
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault();
      event.stopPropagation();
      leave(event.key === "Enter");
    },
  });
  fill(cell, field);
  field.focus();
  field.select();
}
