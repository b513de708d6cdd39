/** Audit log of the server, for admins that are bound to no project: who changed what, newest first. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { ago, count, dateTime } from "vramscope/format.js";
import { problemBanner, roleMark } from "vramscope/parts/ui.js";
import { store } from "vramscope/store.js";

const PAGE = 20;

const WORDS = {
  token_created: "created the token",
  token_revoked: "revoked the token",
  run_changed: "changed the run",
  run_moved: "moved the run",
  run_deleted: "deleted the run",
  recording_deleted: "deleted a recording of",
  profile_deleted: "deleted a profile of",
  snapshot_deleted: "deleted the snapshot",
  session_ended: "ended a session of",
  alerts_changed: "changed the alert rules",
  message_tested: "sent a test message",
};

export class AuditLog {
  constructor() {
    this.element = h("section", { class: "card wide audit", hidden: true });
    this.entries = [];
    this.next = null;
  }

  async load() {
    const { session } = store.get();
    this.element.hidden = session?.role !== "admin" || Boolean(session.projects);
    if (this.element.hidden) return;
    await this.loadMore(null);
  }

  /** Adds the entries that are older than the key `before`. null: the newest ones replace all. */
  async loadMore(before) {
    try {
      const page = await api.audit({ limit: PAGE, before });
      if (before !== null && before !== this.next) return; // it was asked for twice
      this.entries = before === null ? page.entries : [...this.entries, ...page.entries];
      this.next = page.next;
      this.draw(page);
    } catch (error) {
      if (error.status === 401) return;
      fill(this.element, h("header", {}, h("h2", {}, "Audit log")), h("div", { class: "pad" }, problemBanner(error)));
    }
  }

  draw({ next, max_entries: most }) {
    fill(
      this.element,
      h("header", {}, h("h2", {}, "Audit log"), roleMark("admin")),
      h(
        "div",
        { class: "pad stack" },
        h(
          "p",
          { class: "muted" },
          this.entries.length > 0 ? "" : "No changes yet. ",
          `The newest ${count(most)} changes are kept (`,
          h("code", {}, "VRAMSCOPE_AUDIT_ENTRIES"),
          ").",
        ),
        this.entries.length > 0 && h("div", { class: "scroll" }, table(this.entries)),
        next !== null &&
          h("button", { class: "button", type: "button", onclick: () => this.loadMore(next) }, "Show older changes"),
      ),
    );
  }
}

function table(entries) {
  const now = Date.now() / 1000;
  return h(
    "table",
    { class: "plain" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["Time", "Who", "Change", "Address"].map((head) => h("th", { scope: "col" }, head)),
      ),
    ),
    h(
      "tbody",
      {},
      entries.map((entry) =>
        h(
          "tr",
          {},
          h("td", { class: "when", title: dateTime(entry.time_seconds) }, ago(entry.time_seconds, now)),
          h(
            "td",
            { class: entry.actor ? "actor" : "who", title: entry.token && `token ${entry.token}` },
            entry.actor ?? h("span", { class: "muted" }, "no token"),
          ),
          h("td", { class: "change" }, ...changed(entry)),
          h("td", { class: "address" }, entry.address ?? h("span", { class: "muted" }, "this machine")),
        ),
      ),
    ),
  );
}

/** What was changed, as text; then each field with its values. */
function changed({ action, subject, name, project, changes }) {
  const text = [WORDS[action] ?? action.replaceAll("_", " "), name, project && `(${project})`].filter(Boolean).join(" ");
  const fields = changes.map(({ field, before, after }) =>
    h("div", { class: "muted" }, `${field}: ${before === null ? after : `${before || "–"} → ${after || "–"}`}`),
  );
  return [h("span", { title: subject }, text), ...fields];
}
