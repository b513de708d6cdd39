/** Settings page: tokens, audit log, alerts, storage and retention, versions, appearance, and commands to copy. */

import { api } from "vramscope/api.js";
import { fill, h } from "vramscope/dom.js";
import { bytes, count, isKnown } from "vramscope/format.js";
import { AlertRules } from "vramscope/parts/alert_rules.js";
import { AuditLog } from "vramscope/parts/audit_log.js";
import { Notifications } from "vramscope/parts/notifications.js";
import { StartLines } from "vramscope/parts/start_lines.js";
import { Tokens } from "vramscope/parts/tokens.js";
import { known, problemBanner } from "vramscope/parts/ui.js";
import { serverAddress } from "vramscope/parts/welcome.js";
import { store } from "vramscope/store.js";
import { chosenPalette, chosenTheme, onThemeChange, setPalette, setTheme } from "vramscope/theme.js";

const SHOWN_AFTER_MS = 2_000;
const SHOWN_ROLES = ["parameters", "buffers", "workspaces", "optimizer", "gradients", "activations", "other"];

class SettingsPage {
  constructor(root) {
    this.root = root;
    document.title = "Settings · vramscope";
    this.trouble = h("div");
    this.tokens = new Tokens();
    this.alerts = new AlertRules();
    this.messages = new Notifications();
    this.storage = h("section", { class: "card" });
    this.versions = h("section", { class: "card" });
    this.appearance = h("section", { class: "card" });
    this.audit = new AuditLog();
    this.starts = new StartLines();
    fill(
      root,
      h("div", { class: "page-head" }, h("h1", {}, "Settings")),
      this.trouble,
      (this.parts = h(
        "div",
        { class: "settings loading" },
        this.starts.element,
        this.tokens.element,
        h("div", { class: "settings-column" }, this.alerts.element, this.messages.element),
        h("div", { class: "settings-column" }, this.appearance, this.storage, this.versions),
        this.audit.element,
      )),
    );
    this.parts.classList.toggle("with-roles", Boolean(store.get().session?.required));
    this.stopTheme = onThemeChange(() => this.drawAppearance());
    this.drawAppearance();
    this.showAfter([this.tokens.load(), this.audit.load(), this.alerts.load(), this.messages.load(), this.loadServer()]);
    this.latest = setTimeout(() => this.parts.classList.remove("loading"), SHOWN_AFTER_MS); // without an answer, too
    let session = store.get().session;
    this.stopSession = store.watch((state) => {
      if (state.session === session) return;
      session = state.session; // whether tokens are required is known only after the page is shown
      this.parts.classList.toggle("with-roles", Boolean(session?.required));
      this.showAfter([this.tokens.load(), this.audit.load(), this.alerts.load(), this.messages.load()]);
      this.starts.draw();
    });
    this.timer = setInterval(() => !document.hidden && this.loadServer(), 15_000);
  }

  close() {
    this.stopTheme();
    this.stopSession();
    clearInterval(this.timer);
    clearTimeout(this.latest);
  }

  /** Shows the cards once all are drawn and the session is known, so that none pushes another one down. */
  showAfter(loads) {
    this.loads = loads;
    Promise.allSettled(loads).then(() => {
      if (loads === this.loads && store.get().session) this.parts.classList.remove("loading");
    });
  }

  async loadServer() {
    try {
      const server = await api.server();
      fill(this.trouble);
      this.drawStorage(server);
      this.drawVersions(server);
      this.starts.setHost(server.host_name);
    } catch (error) {
      if (error.status !== 401) fill(this.trouble, problemBanner(error));
    }
  }

  drawStorage({ database, retention }) {
    const { clock, ...limits } = retention ?? {};
    const kept = Object.entries(limits)
      .filter(([, value]) => isKnown(value))
      .map(([name, value]) => retentionText(name, value));
    fill(
      this.storage,
      h("header", {}, h("h2", {}, "Storage")),
      h(
        "div",
        { class: "pad" },
        h(
          "dl",
          { class: "facts" },
          h("dt", {}, "runs"),
          h("dd", {}, known(count(database?.runs))),
          h("dt", {}, "size"),
          h("dd", {}, known(bytes(database?.bytes))),
          h("dt", {}, "database"),
          h("dd", {}, known(database?.kind ?? "unknown")),
          h("dt", {}, "kept"),
          h("dd", {}, kept.length ? kept.map((line) => h("div", {}, line)) : "everything: no age or size limit"),
          ...(clock ? [h("dt", {}, "clock"), h("dd", {}, clock)] : []),
          h("dt", {}, "set by"),
          h(
            "dd",
            {},
            h("code", {}, "VRAMSCOPE_RETENTION_DAYS"),
            ", ",
            h("code", {}, "VRAMSCOPE_RETENTION_BYTES"),
            " where the server is started",
          ),
        ),
      ),
    );
  }

  drawVersions(server) {
    fill(
      this.versions,
      h("header", {}, h("h2", {}, "Versions")),
      h(
        "div",
        { class: "pad" },
        h(
          "dl",
          { class: "facts" },
          h("dt", {}, "vramscope"),
          h("dd", {}, known(server.version ?? "unknown")),
          h("dt", {}, "wire"),
          h("dd", {}, known(String(server.wire ?? "unknown"))),
          h("dt", {}, "plotly.py"),
          h("dd", {}, known(server.plotly_py ?? "unknown")),
          h("dt", {}, "Plotly.js"),
          h("dd", {}, known(server.plotly_js ?? "unknown")),
          h("dt", {}, "address"),
          h("dd", {}, serverAddress()),
          h("dt", {}, "HTTP API"),
          h(
            "dd",
            {},
            h("a", { href: "/api/v1/docs", target: "_blank", rel: "noopener" }, "/api/v1/docs"),
            " · ",
            h("a", { href: "/metrics", target: "_blank", rel: "noopener" }, "/metrics"),
          ),
        ),
      ),
    );
  }

  drawAppearance() {
    const chosen = chosenTheme();
    const palette = chosenPalette();
    const press = (label, on, onclick) => h("button", { type: "button", "aria-pressed": String(on), onclick }, label);
    const theme = (label, value) => press(label, chosen === value, () => setTheme(value));
    const colours = (label, value) => press(label, palette === value, () => setPalette(value));
    fill(
      this.appearance,
      h("header", {}, h("h2", {}, "Appearance")),
      h(
        "div",
        { class: "pad stack" },
        h("p", { class: "muted" }, "Stored in this browser."),
        h(
          "div",
          { class: "choice" },
          "Theme",
          h(
            "div",
            { class: "segmented", role: "group", "aria-label": "Theme" },
            theme("System", null),
            theme("Light", "light"),
            theme("Dark", "dark"),
          ),
        ),
        h(
          "div",
          { class: "choice" },
          "Colours",
          h(
            "div",
            { class: "segmented", role: "group", "aria-label": "Colours" },
            colours("Colour palette", null),
            colours("Brightness", "brightness"),
          ),
        ),
        h(
          "div",
          { class: "swatches", "aria-hidden": "true" },
          SHOWN_ROLES.map((role) => h("span", { class: "swatch", style: { "--swatch": `var(--role-${role})` } })),
        ),
        h(
          "p",
          { class: "muted" },
          palette
            ? "From dark blue to light yellow: for print and for colour-blind readers."
            : "Okabe–Ito palette, distinct for most colour-blind readers.",
        ),
        h(
          "p",
          { class: "muted" },
          "Sizes are in KiB, MiB and GiB (powers of 1024), as in PyTorch and nvidia-smi: 1 GiB = 1.074 GB. Press ",
          h("kbd", {}, "?"),
          " on any page for keyboard help.",
        ),
      ),
    );
  }
}

function retentionText(name, value) {
  if (name === "days") return `runs without data for ${count(value)} ${value === 1 ? "day" : "days"} are deleted`;
  if (name === "bytes") return `above ${bytes(value)} the oldest ended runs are deleted`;
  return `${name.replaceAll("_", " ")}: ${value}`;
}

export const open = (root) => new SettingsPage(root);
