/** Rules of alerts, one per line. The server stores each change. */

import { api } from "vramscope/api.js";
import { fill, h, setText } from "vramscope/dom.js";
import { problemBanner, roleMark } from "vramscope/parts/ui.js";
import { store } from "vramscope/store.js";

const MIB = 2 ** 20;

/** Rule, label, field of its threshold, size of one unit in that field, unit, and explanation. */
const LINES = [
  ["leaks", "Leaks, from", "least_bytes", MIB, "MiB", "retained by all leaks together, on the worst rank; 0: any"],
  ["out_of_memory", "Out-of-memory errors", null, 1, "", "including survived ones"],
  ["findings", "Known pitfalls", null, 1, "", "settings known to cost memory or accuracy"],
  ["resets", "Peaks that are lower bounds", null, 1, "", "other code reset PyTorch’s peak counters"],
  ["headroom", "Headroom below", "below_fraction", 0.01, "% of the card", "capacity minus the highest use"],
  [
    "forecast",
    "Out of memory within",
    "below_seconds",
    60,
    "minutes",
    "if memory after each step keeps growing; sends a message, not counted on pages",
  ],
  ["never_needed", "Never needed above", "above_fraction", 0.01, "% of reserved", "peak reserved minus peak allocated"],
];

export class AlertRules {
  fields = new Map();

  constructor() {
    this.status = h("p", { class: "muted", role: "status" });
    this.list = h("div", { class: "alert-rules" });
    this.element = h(
      "section",
      { class: "card" },
      h("header", {}, h("h2", {}, "Alerts"), roleMark("write")),
      h(
        "div",
        { class: "pad stack" },
        h(
          "p",
          { class: "muted" },
          "Rules for the number of alerts on a run’s page. Stored on the server, for all users.",
        ),
        this.list,
        this.status,
      ),
    );
  }

  async load() {
    try {
      this.show((await api.alerts()).rules);
    } catch (error) {
      if (error.status !== 401) fill(this.list, problemBanner(error));
    }
  }

  show(rules) {
    this.rules = rules;
    if (this.fields.size === 0)
      fill(
        this.list,
        LINES.map((line) => this.line(...line)),
      );
    for (const [name, , limit, size] of LINES) {
      const { on, threshold } = this.fields.get(name);
      on.checked = rules[name].on;
      if (!threshold) continue;
      threshold.value = String(Number((rules[name][limit] / size).toPrecision(6)));
      threshold.disabled = !rules[name].on;
    }
    const { role, projects, by } = store.get().session ?? {};
    if (role === "read") this.forReadersOnly(by !== "token" ? "Your role is read" : "Your token has the role read");
    else if (projects) this.forReadersOnly("Your token is bound to projects");
  }

  forReadersOnly(reason) {
    for (const { on, threshold } of this.fields.values()) {
      on.disabled = true;
      if (threshold) threshold.disabled = true;
    }
    this.setStatus(`${reason}: it cannot change these rules.`);
  }

  line(name, words, limit, size, unit, meaning) {
    const on = h("input", { type: "checkbox", onchange: () => this.change(name, { on: on.checked }) });
    const threshold =
      limit &&
      h("input", {
        type: "number",
        step: "any",
        min: "0",
        "aria-label": `${words} (${unit})`,
        onchange: () => this.readThreshold(name, limit, size),
      });
    this.fields.set(name, { on, threshold });
    return h(
      "div",
      { "data-rule": name },
      h("label", { title: meaning }, on, words),
      threshold && h("span", { class: "with-unit" }, threshold, unit),
      h("span", { class: "muted below" }, meaning),
    );
  }

  readThreshold(name, limit, size) {
    const { threshold } = this.fields.get(name);
    const number = threshold.value.trim() === "" ? NaN : Number(threshold.value);
    if (Number.isFinite(number))
      this.change(
        name,
        { [limit]: size === MIB ? Math.round(number * size) : Number((number * size).toPrecision(12)) },
        threshold,
      );
    else this.showRefusal(threshold, "Not a number. Nothing was changed.");
  }

  async change(name, rule, field = null) {
    try {
      const { rules } = await api.changeAlerts({ [name]: rule });
      for (const { threshold } of this.fields.values()) threshold?.removeAttribute("aria-invalid");
      this.show(rules);
      this.setStatus("Stored.");
    } catch (error) {
      if (error.status !== 422) this.show(this.rules);
      this.showRefusal(field, `${error.message} Nothing was changed.`);
    }
  }

  showRefusal(field, words) {
    field?.setAttribute("aria-invalid", "true");
    this.setStatus(words, "more");
  }

  setStatus(words, kind = "") {
    setText(this.status, words);
    this.status.className = kind || "muted";
  }
}
