/** Views of the runs list that this browser keeps under a name: filters, order, groups and columns. */

import { fill, h } from "vramscope/dom.js";

const KEPT = "vramscope.runs.views";

/** Kept views: {name: query of the URL}. Empty if there are none, or if the storage is blocked or spoilt. */
function kept() {
  try {
    const views = JSON.parse(localStorage.getItem(KEPT) ?? "{}");
    return Object.fromEntries(Object.entries(views).filter(([, query]) => typeof query === "string"));
  } catch {
    return {};
  }
}

export class SavedViews {
  constructor() {
    this.links = h("div", { class: "saved-views" });
    this.name = h("input", {
      type: "text",
      placeholder: "name of this view",
      "aria-label": "Name of this view",
      maxlength: 60,
      onkeydown: (event) => event.key === "Enter" && this.save(),
    });
    this.problem = h("span", { class: "muted", role: "status" });
    this.element = h(
      "div",
      { class: "saved" },
      this.links,
      h(
        "div",
        { class: "save-view" },
        this.name,
        h("button", { class: "button small", type: "button", onclick: () => this.save() }, "Save view"),
      ),
      this.problem,
    );
    this.draw();
  }

  draw() {
    fill(
      this.links,
      Object.entries(kept()).map(([name, query]) =>
        h(
          "div",
          { class: "save-view" },
          h("a", { class: "menu-item", href: `/runs${query}` }, name),
          h(
            "button",
            {
              class: "button quiet small",
              type: "button",
              "aria-label": `forget the view ${name}`,
              onclick: (event) => {
                event.stopPropagation(); // the menu stays open though its button is gone
                this.keep({ ...kept(), [name]: undefined });
              },
            },
            "✕",
          ),
        ),
      ),
    );
  }

  save() {
    const name = this.name.value.trim();
    if (!name) {
      this.name.focus();
      return;
    }
    this.name.value = "";
    this.keep({ ...kept(), [name]: location.search });
  }

  keep(views) {
    try {
      localStorage.setItem(KEPT, JSON.stringify(views));
      fill(this.problem);
    } catch {
      fill(this.problem, "This browser stores nothing for this page.");
    }
    this.draw();
  }
}
