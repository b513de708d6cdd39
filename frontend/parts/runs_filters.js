/** Filters of the runs list, kept in the URL: a search, four lists, and the job that a run's page links to. */

import { fill, h, setText } from "vramscope/dom.js";
import { setQuery, store } from "vramscope/store.js";

export const STATES = ["running", "finished", "failed", "lost"];

const TYPING_MS = 180;
const LISTS = { project: "All projects", device: "Any device", tag: "Any tag" };

export class RunsFilters {
  chosen = {}; // parameters of `api.runs`; "" is no filter
  offered = {}; // filter -> names in its list

  constructor() {
    const list = (name) =>
      h("select", {
        "aria-label": name[0].toUpperCase() + name.slice(1),
        onchange: (event) => setQuery({ [name]: event.target.value || null }),
      });
    this.search = h("input", {
      type: "search",
      "data-search": true,
      placeholder: "Search name, project, tag, device  ( / )",
      "aria-label": "Search runs",
      oninput: () => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => setQuery({ q: this.search.value }), TYPING_MS);
      },
    });
    this.lists = { project: list("project"), state: list("state"), device: list("device"), tag: list("tag") };
    fill(
      this.lists.state,
      h("option", { value: "" }, "Any state"),
      STATES.map((state) => h("option", { value: state }, state)),
    );
    this.job = h("button", {
      class: "button small",
      type: "button",
      hidden: true,
      title: "Show the runs of all jobs",
      onclick: () => setQuery({ job: null }),
    });
    // A narrow page shows the lists on request only.
    this.toggle = h("button", {
      class: "button filters-toggle",
      type: "button",
      "aria-expanded": "false",
      "aria-controls": "filter-lists",
      onclick: () => this.show(!this.group.classList.contains("shown")),
    });
    this.group = h("div", { class: "filter-lists", id: "filter-lists" }, Object.values(this.lists));
    this.element = h("div", { class: "filters", role: "search" }, this.search, this.toggle, this.group, this.job);
  }

  close() {
    clearTimeout(this.typing);
  }

  /** Shows or hides the lists on a narrow page. */
  show(isShown) {
    this.group.classList.toggle("shown", isShown);
    this.toggle.setAttribute("aria-expanded", String(isShown));
  }

  get isOn() {
    return Object.values(this.chosen).some(Boolean);
  }

  /** Reads the filters from the URL. Returns whether they changed. */
  read() {
    const { q = "", project = "", state = "", device = "", tag = "", job = "" } = store.get().query;
    const chosen = { query: q, project, state: STATES.includes(state) ? state : "", device, tag, job };
    const changed = JSON.stringify(chosen) !== JSON.stringify(this.chosen);
    this.chosen = chosen;
    if (changed && document.activeElement !== this.search) this.search.value = chosen.query;
    this.lists.state.value = chosen.state;
    const active = Object.keys(this.lists).filter((name) => chosen[name]).length;
    setText(this.toggle, active > 0 ? `Filters (${active})` : "Filters");
    this.job.hidden = !job;
    setText(this.job, `Job ${job} ×`);
    return changed;
  }

  /** Offers the names of the stored runs. A chosen name stays in its list when no run has it any more. */
  offer(stored) {
    for (const [filter, all] of Object.entries(LISTS)) {
      const chosen = this.chosen[filter];
      const names = chosen && !stored[filter].includes(chosen) ? [...stored[filter], chosen] : stored[filter];
      const key = names.join("\n");
      const list = this.lists[filter];
      if (this.offered[filter] !== key) {
        this.offered[filter] = key;
        fill(
          list,
          h("option", { value: "" }, all),
          names.map((name) => h("option", { value: name }, name)),
        );
        list.hidden = names.length === 0;
      }
      list.value = chosen;
    }
  }
}
