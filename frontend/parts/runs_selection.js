/** Selected runs of the list, and the bar of what can be done with them. */

import { api } from "vramscope/api.js";
import { h } from "vramscope/dom.js";
import { count } from "vramscope/format.js";
import { confirmButton } from "vramscope/parts/confirm_button.js";
import { tagsOf } from "vramscope/parts/tags_editor.js";
import { go } from "vramscope/store.js";

const runsInWords = (number) => `${count(number)} ${number === 1 ? "run" : "runs"}`;

export class RunsSelection {
  chosen = new Set(); // run ids

  /** `rowOf(id)`: a run's row; `onChange()`: the selection changed; `onDone(problem)`: the runs themselves changed. */
  constructor(rowOf, onChange, onDone) {
    Object.assign(this, { rowOf, onChange, onDone });
    this.said = h("span", { class: "said", role: "status" });
    this.compare = h("button", {
      class: "button primary",
      type: "button",
      onclick: () => go(`/compare?runs=${[...this.chosen].join(",")}`),
    });
    this.tag = h("input", {
      type: "text",
      list: "known-tags",
      placeholder: "tag",
      "aria-label": "Tag for the selected runs",
      onkeydown: (event) => event.key === "Enter" && this.addTags(),
    });
    this.deletion = confirmButton(
      "Delete",
      () => `Delete ${runsInWords(this.chosen.size)} permanently?`,
      () => this.each((id) => api.deleteRun(id), true),
    );
    const item = (label, act) => h("button", { class: "button small", type: "button", onclick: act }, label);
    this.menu = h(
      "details",
      { class: "menu" },
      h("summary", { class: "button" }, "Actions"),
      h(
        "div",
        { class: "menu-list" },
        this.tag,
        h(
          "div",
          { class: "pair" },
          item("Add tag", () => this.addTags()),
          item("Remove tag", () => this.removeTags()),
        ),
        h(
          "div",
          { class: "pair" },
          item("Pin", () => this.each((id) => api.changeRun(id, { pinned: true }))),
          item("Unpin", () => this.each((id) => api.changeRun(id, { pinned: false }))),
        ),
        this.deletion,
      ),
    );
    this.element = h(
      "div",
      { class: "compare-bar", hidden: true },
      this.said,
      this.compare,
      this.menu,
      h("button", { class: "button quiet small", type: "button", onclick: () => this.clear() }, "Clear"),
    );
  }

  /** Selects runs, or takes them out of the selection. */
  set(ids, on) {
    for (const id of ids) {
      if (on) this.chosen.add(id);
      else this.chosen.delete(id);
    }
    this.draw();
  }

  clear() {
    this.chosen.clear();
    this.menu.open = false;
    this.draw();
  }

  draw() {
    const number = this.chosen.size;
    this.element.hidden = number === 0;
    this.said.textContent = `${runsInWords(number)} selected`;
    this.compare.textContent = `Compare (${number})`;
    this.onChange();
  }

  addTags() {
    const added = tagsOf(this.tag.value);
    this.changeTags(added, (tags) => [...new Set([...tags, ...added])]);
  }

  removeTags() {
    const removed = tagsOf(this.tag.value);
    this.changeTags(removed, (tags) => tags.filter((tag) => !removed.includes(tag)));
  }

  changeTags(words, changed) {
    if (words.length === 0) {
      this.tag.focus();
      return;
    }
    this.tag.value = "";
    this.each(async (id) => {
      const { tags } = this.rowOf(id) ?? (await api.run(id)); // a filter may hide a selected run
      await api.changeRun(id, { tags: changed(tags) });
    });
  }

  /** Changes each selected run. A refused run stays selected, and the first refusal is shown. */
  async each(act, leaves = false) {
    this.menu.open = false;
    let problem = null;
    for (const id of [...this.chosen]) {
      try {
        await act(id);
        if (leaves) this.chosen.delete(id);
      } catch (error) {
        problem ??= error;
      }
    }
    this.draw();
    this.onDone(problem);
  }
}
