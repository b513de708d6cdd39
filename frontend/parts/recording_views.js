/**
 * Views of one recording behind tabs. The open tab is in the URL.
 *
 * A view is {element, open(moments), update(), close()}, created when it is first shown. It may have pan(by) and
 * scale(factor).
 */

import { fill, h } from "vramscope/dom.js";
import { EventsTable } from "vramscope/parts/events_table.js";
import { ExportMenu } from "vramscope/parts/export_menu.js";
import { ChartsFirst } from "vramscope/parts/phone_order.js";
import { setQuery, store } from "vramscope/store.js";

/** Actions of the keys that move the window of a timeline. `viewsOf()`: views of the recording. */
export const movesOf = (viewsOf) => ({
  closer: () => viewsOf().scale(0.5),
  wider: () => viewsOf().scale(2),
  left: () => viewsOf().pan(-0.25),
  right: () => viewsOf().pan(0.25),
});

export class RecordingViews {
  /**
   * views     [[name, label, make()], ..]. The first one is the default. A table of events is added as the last one.
   * beside    element of the bar, before the export menu
   * instead   (moments, name) => element shown instead of a view that has nothing to show; null: the view
   */
  constructor(views, { beside = null, instead = () => null } = {}) {
    this.views = [...views, ["events", "Events", () => this.events()]];
    this.instead = instead;
    this.made = {};
    this.tabs = h(
      "nav",
      { class: "tabs", "aria-label": "Views" },
      this.views.map(([name, label]) =>
        h(
          "a",
          {
            "data-tab": name,
            href: "#",
            onclick: (event) => {
              event.preventDefault();
              setQuery({ tab: this.inQuery(name) }, { push: true });
            },
          },
          label,
        ),
      ),
    );
    this.search = h("input", {
      type: "search",
      "data-search": true,
      placeholder: "Find a line or module  ( / )",
      "aria-label": "Find events by line or module",
      onkeydown: (event) => event.key === "Enter" && this.find(),
    });
    this.exports = new ExportMenu();
    this.place = h("div");
    this.body = h("div");
    const tools = h("div", { class: "recording-tools" }, this.search, this.exports.element);
    this.element = h(
      "div",
      {},
      h("div", { class: "view-bar recording-views" }, this.tabs, beside, tools),
      this.place,
      this.body,
    );
    this.order = new ChartsFirst(this.body, [tools]);
    this.markTab();
  }

  /** Shows the events whose stack or module has the text. */
  find() {
    const text = this.search.value.trim();
    if (!text) return;
    this.search.value = "";
    setQuery({ tab: "events", q: text }, { push: true });
  }

  /** Table of events. Its links open the first view. */
  events() {
    const showInFirst = (view) => setQuery({ tab: null, ...view, from: null, to: null }, { push: true });
    return new EventsTable({
      onEvent: (event) => showInFirst({ event }),
      onAllocation: (allocation, event) => showInFirst({ allocation, event }),
    });
  }

  /** Name of a view in the URL. Null for the first one. */
  inQuery(name) {
    return name === this.views[0][0] ? null : name;
  }

  get tab() {
    const { tab } = store.get().query;
    return (this.views.find(([name]) => name === tab) ?? this.views[0])[0];
  }

  /** Shows a recording from its beginning. Each view opens it when it is first shown. */
  open(moments) {
    this.moments = moments;
    this.opened = new Set();
    this.show();
  }

  /** Called when the URL changes. */
  update() {
    if (!this.moments) return;
    if (this.tab !== this.shown) this.show();
    else this.view?.update();
    this.exports.show(this.moments.recording);
  }

  /** Closes all views. A recording opened later creates new ones. */
  close() {
    this.order.close();
    for (const view of Object.values(this.made)) view.close();
    this.made = {};
    this.moments = this.view = null;
    fill(this.place);
    fill(this.body);
  }

  pan(by) {
    this.view?.pan?.(by);
  }

  scale(factor) {
    this.view?.scale?.(factor);
  }

  /** Creates a view. Its element stays in the document while hidden, because charts that leave it are destroyed. */
  make(tab) {
    const view = this.views.find(([name]) => name === tab)[2]();
    this.body.append(view.element);
    return view;
  }

  markTab() {
    this.search.hidden = this.tab === "events"; // it has a search of its own
    for (const link of this.tabs.children) {
      if (link.dataset.tab === this.tab) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }

  show() {
    const { tab, moments } = this;
    this.shown = tab;
    this.markTab();
    this.exports.show(moments.recording);
    const instead = this.instead(moments, tab);
    fill(this.place, instead);
    this.view = instead ? null : (this.made[tab] ??= this.make(tab));
    for (const view of Object.values(this.made)) view.element.hidden = view !== this.view;
    if (!this.view) return;
    if (this.opened.has(tab)) this.view.update();
    else this.view.open(moments);
    this.opened.add(tab);
  }
}
