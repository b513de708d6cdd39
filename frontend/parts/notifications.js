/** Where the server sends messages about runs, and a test of it. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { ago, dateTime, isKnown } from "vramscope/format.js";
import { problemBanner, roleMark } from "vramscope/parts/ui.js";
import { store } from "vramscope/store.js";

export class Notifications {
  constructor() {
    this.status = h("p", { class: "muted", role: "status" });
    this.list = h("div", { class: "stack" });
    this.element = h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Messages"), roleMark("write")),
      h("div", { class: "pad stack" }, this.list, this.status),
    );
  }

  async load() {
    try {
      this.draw(await api.notifications());
    } catch (error) {
      if (error.status !== 401) fill(this.list, problemBanner(error));
    }
  }

  draw(targets) {
    if (targets.length === 0) {
      fill(
        this.list,
        h(
          "p",
          { class: "muted" },
          "The server can send a message when a run fails, runs out of memory, leaks or is silent: to a webhook, Slack, Discord, by mail and more. Set ",
          h("code", {}, "VRAMSCOPE_NOTIFY"),
          " where it is started.",
        ),
      );
      return;
    }
    const { role, projects } = store.get().session ?? {};
    const now = Date.now() / 1000;
    const state = ({ last_sent_seconds: sent, problem }) => {
      if (problem) return h("span", { class: "more" }, problem);
      if (!isKnown(sent)) return h("span", { class: "muted" }, "nothing sent yet");
      return h("span", { class: "muted", title: dateTime(sent) }, `sent ${ago(sent, now)}`);
    };
    fill(
      this.list,
      h("p", { class: "muted" }, "Sent once when a run fails, runs out of memory or is silent, and for alerts about leaks, headroom and memory that runs out soon."),
      targets.map((target) => h("div", { class: "target" }, h("code", {}, target.name), state(target))),
      role !== "read" &&
        !projects &&
        h("button", { class: "button", type: "button", onclick: (event) => this.test(event.target) }, "Send a test"),
    );
  }

  async test(button) {
    button.disabled = true;
    this.status.textContent = "sending…";
    try {
      const targets = await api.testNotifications();
      this.draw(targets);
      const failed = targets.filter((target) => target.problem).length;
      this.status.textContent = failed ? `${failed} of ${targets.length} did not accept it.` : "Sent.";
    } catch (error) {
      this.status.textContent = error.message;
      button.disabled = false;
    }
  }
}
