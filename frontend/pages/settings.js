/** Settings page: tokens, alerts, storage and retention, versions, appearance, and commands to copy. */

import { api } from "vramscope/api.js";
import { copyButton, fill, h } from "vramscope/dom.js";
import { ago, bytes, count, isKnown, dateTime } from "vramscope/format.js";
import { AlertRules } from "vramscope/parts/alert_rules.js";
import { known, problemBanner, snippet } from "vramscope/parts/ui.js";
import { confirmButton } from "vramscope/parts/confirm_button.js";
import { serverAddress, startLines } from "vramscope/parts/welcome.js";
import { store } from "vramscope/store.js";
import { chosenPalette, chosenTheme, onThemeChange, setPalette, setTheme } from "vramscope/theme.js";

const SHOWN_ROLES = ["parameters", "buffers", "optimizer", "gradients", "activations", "other"];

class SettingsPage {
  constructor(root) {
    this.root = root;
    document.title = "Settings · vramscope";
    this.trouble = h("div");
    this.tokens = h("section", { class: "card wide tokens" });
    this.storage = h("section", { class: "card" });
    this.versions = h("section", { class: "card" });
    this.appearance = h("section", { class: "card" });
    this.starts = h("section", { class: "card wide" });
    fill(
      root,
      h("div", { class: "page-head" }, h("h1", {}, "Settings")),
      this.trouble,
      h(
        "div",
        { class: "settings" },
        this.tokens,
        new AlertRules().element,
        this.appearance,
        this.storage,
        this.versions,
        this.starts,
      ),
    );
    this.stopTheme = onThemeChange(() => this.drawAppearance());
    this.drawAppearance();
    this.drawStarts();
    this.loadTokens();
    this.loadServer();
    let session = store.get().session;
    this.stopSession = store.watch((state) => {
      if (state.session === session) return;
      session = state.session; // whether tokens are required is known only after the page is shown
      this.loadTokens();
    });
    this.timer = setInterval(() => !document.hidden && this.loadServer(), 15_000);
  }

  close() {
    this.stopTheme();
    this.stopSession();
    clearInterval(this.timer);
  }

  async loadServer() {
    try {
      const server = await api.server();
      fill(this.trouble);
      this.drawStorage(server);
      this.drawVersions(server);
    } catch (error) {
      if (error.status !== 401) fill(this.trouble, problemBanner(error));
    }
  }

  drawStorage({ database, retention }) {
    const kept = Object.entries(retention ?? {})
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

  drawStarts() {
    const lines = startLines();
    fill(
      this.starts,
      h("header", {}, h("h2", {}, "Getting started")),
      h(
        "div",
        { class: "pad stack" },
        h(
          "div",
          {},
          h("p", { class: "muted" }, "A training, without code changes"),
          snippet(`${lines.install}\n${lines.command}`),
        ),
        h(
          "div",
          {},
          h("p", { class: "muted" }, "From another machine, with a token of scope ingest"),
          snippet(`VRAMSCOPE_SERVER=${serverAddress()} VRAMSCOPE_TOKEN=… python train.py`),
        ),
        h(
          "div",
          {},
          h("p", { class: "muted" }, "Send data that was kept on disk while the server was down"),
          snippet("vramscope sync"),
        ),
        h(
          "div",
          {},
          h(
            "p",
            { class: "muted" },
            "A server with Docker, from a checkout, on SQLite or PostgreSQL. Each prints its first token once.",
          ),
          snippet("docker compose up -d server\ndocker compose up -d server-postgres\ndocker compose logs server"),
        ),
      ),
    );
  }

  async loadTokens() {
    try {
      const answer = await api.tokens();
      this.drawTokens(Array.isArray(answer) ? answer : answer.tokens);
    } catch (error) {
      if (error.status === 401) return;
      fill(this.tokens, h("header", {}, h("h2", {}, "Tokens")), h("div", { class: "pad" }, problemBanner(error)));
    }
  }

  drawTokens(tokens) {
    if (!this.form) {
      // built once, to keep the typed text and the focus
      this.form = this.makeForm();
      this.secret = h("div", { "aria-live": "polite" });
      this.signedIn = h("span");
      this.explanation = h("p", { class: "muted" });
      this.list = h("div", { class: "scroll" });
      fill(
        this.tokens,
        h("header", {}, h("h2", {}, "Tokens"), h("span", { class: "spring" }), this.signedIn),
        h("div", { class: "pad stack" }, this.explanation, this.secret, this.list, this.form),
      );
    }
    const { required, authenticated } = store.get().session ?? {};
    fill(
      this.signedIn,
      required &&
        authenticated &&
        h("button", { class: "button small", type: "button", onclick: () => this.signOut() }, "Sign out"),
    );
    fill(
      this.explanation,
      required
        ? "This server requires tokens: scope ingest to send runs, scope read to view them."
        : "This server listens on loopback only and requires no tokens. On another address it will: scope ingest to send runs, scope read to view them.",
    );
    this.list.hidden = tokens.length === 0;
    fill(
      this.list,
      h(
        "table",
        { class: "plain" },
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["Name", "Scopes", "Created", "Last used", ""].map((head) =>
              h("th", { scope: "col", class: head.toLowerCase().replace(" ", "-") || null }, head),
            ),
          ),
        ),
        h(
          "tbody",
          {},
          tokens.map((token) => this.tokenRow(token)),
        ),
      ),
    );
  }

  makeForm() {
    const name = h("input", {
      type: "text",
      required: true,
      maxlength: "100",
      placeholder: "Purpose, such as: cluster",
      "aria-label": "Name of the new token",
    });
    const box = (scope, checked) => h("input", { type: "checkbox", value: scope, checked });
    const [ingest, read] = [box("ingest", true), box("read", false)];
    const status = h("span", { class: "muted", role: "status" });
    const form = h(
      "form",
      { class: "token-form" },
      name,
      h("label", { title: "may send runs" }, ingest, "ingest"),
      h("label", { title: "may view everything" }, read, "read"),
      h("button", { class: "button primary", type: "submit" }, "Create token"),
      status,
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const scopes = [ingest, read].filter((input) => input.checked).map((input) => input.value);
      if (scopes.length === 0) {
        status.textContent = "A token needs a scope.";
        return;
      }
      try {
        const made = await api.createToken(name.value.trim(), scopes);
        fill(
          this.secret,
          h(
            "div",
            { class: "banner good" },
            h("strong", {}, "Copy it now. It is shown only once."),
            h(
              "span",
              { class: "secret" },
              h("code", {}, made.token),
              copyButton("Copy", () => made.token),
            ),
          ),
        );
        this.loadTokens();
      } catch (error) {
        status.textContent = error.message;
      }
    });
    return form;
  }

  tokenRow(token) {
    const now = Date.now() / 1000;
    const when = (value, never) =>
      isKnown(value) ? h("span", { title: dateTime(value) }, ago(value, now)) : h("span", { class: "muted" }, never);
    const revoked = isKnown(token.revoked_seconds);
    const button = confirmButton("Revoke", "Revoke permanently?", async () => {
      try {
        await api.revokeToken(token.id ?? token.token_id);
        this.loadTokens();
      } catch (error) {
        fill(this.secret, problemBanner(error));
      }
    });
    return h(
      "tr",
      {},
      h("td", {}, token.name),
      h(
        "td",
        {},
        (token.scopes ?? []).map((scope) => h("span", { class: "chip" }, scope)),
      ),
      h("td", { class: "created" }, when(token.created_seconds, "unknown")),
      h("td", {}, when(token.last_used_seconds, "never")),
      h(
        "td",
        { class: "number" },
        revoked ? h("span", { class: "muted" }, `revoked ${ago(token.revoked_seconds, now)}`) : button,
      ),
    );
  }

  async signOut() {
    await api.signOut();
    location.href = "/runs";
  }
}

function retentionText(name, value) {
  if (name === "days") return `runs without data for ${count(value)} ${value === 1 ? "day" : "days"} are deleted`;
  if (name === "bytes") return `above ${bytes(value)} the oldest ended runs are deleted`;
  return `${name.replaceAll("_", " ")}: ${value}`;
}

export const open = (root) => new SettingsPage(root);
