/**
 * The views of one recording behind tabs, of which the URL says which one is open, and the window that they share as a file.
 *
 * A view is {element, open(told), update(), close()}, made when it is first looked at; one that moves to and fro has pan(by), too.
 */

import { fill, h } from "vramscope/dom.js";
import { EventsTable } from "vramscope/parts/events_table.js";
import { ExportMenu } from "vramscope/parts/export_menu.js";
import { setQuery, store } from "vramscope/store.js";

export class RecordingViews {
  /**
   * views     [[name, label, make()], ..]: the first one is open where the URL says none; the table of events comes behind them
   * beside    an element that stands in the bar, before the export
   * instead   (told, name) => what stands in a view's place where it has nothing to show; null: the view
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
    this.exports = new ExportMenu();
    this.place = h("div");
    this.body = h("div");
    this.element = h(
      "div",
      {},
      h("div", { class: "view-bar recording-views" }, this.tabs, beside, this.exports.element),
      this.place,
      this.body,
    );
    this.markTab();
  }

  /** What the table of events points at is looked at in the first view. */
  events() {
    const showInFirst = (view) => setQuery({ tab: null, ...view, from: null, to: null }, { push: true });
    return new EventsTable({
      onEvent: (event) => showInFirst({ event }),
      onAllocation: (allocation, event) => showInFirst({ allocation, event }),
    });
  }

  /** A view's name as the URL has it: nothing for the first. */
  inQuery(name) {
    return name === this.views[0][0] ? null : name;
  }

  get tab() {
    const { tab } = store.get().query;
    return (this.views.find(([name]) => name === tab) ?? this.views[0])[0];
  }

  /** Show a recording; `told`: its moments. Views look at it from its beginning, each when it is its turn. */
  open(moments) {
    this.moments = moments;
    this.opened = new Set();
    this.show();
  }

  /** The URL has changed. */
  update() {
    if (!this.moments) return;
    if (this.tab !== this.shown) this.show();
    else this.view?.update();
    this.exports.show(this.moments.recording);
  }

  /** Nothing is asked any more; what is opened afterwards begins anew. */
  close() {
    for (const view of Object.values(this.made)) view.close();
    this.made = {};
    this.moments = this.view = null;
    fill(this.place);
    fill(this.body);
  }

  pan(by) {
    this.view?.pan?.(by);
  }

  /** It stays in the document while another is looked at: a chart that leaves it is gone. */
  make(tab) {
    const view = this.views.find(([name]) => name === tab)[2]();
    this.body.append(view.element);
    return view;
  }

  markTab() {
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
