/** The tokens of the server: what each role may do, a table, and a form for a new one. An admin sees and makes them. */

import { api } from "vramscope/api.js";
import { copyButton, fill, h } from "vramscope/dom.js";
import { ago, dateTime, isKnown } from "vramscope/format.js";
import { confirmButton } from "vramscope/parts/confirm_button.js";
import { problemBanner, roleMark } from "vramscope/parts/ui.js";
import { store } from "vramscope/store.js";

export const ROLES = {
  write: "reads everything, and sends and changes runs",
  read: "reads everything and changes nothing",
  admin: "may do everything, also delete runs and create tokens",
};

/** What each role may do. */
function rolesList() {
  return h(
    "dl",
    { class: "facts" },
    ["read", "write", "admin"].map((role) => [h("dt", {}, role), h("dd", {}, ROLES[role])]),
  );
}

export class Tokens {
  constructor() {
    this.element = h("section", { class: "card wide tokens" });
  }

  async load() {
    const { session } = store.get();
    if (!session) return; // this is called again when it is known
    if (session.required && session.role !== "admin") {
      this.drawForOthers(session);
      return;
    }
    try {
      this.draw(await api.tokens());
    } catch (error) {
      if (error.status === 401) return;
      fill(this.element, h("header", {}, h("h2", {}, "Tokens")), h("div", { class: "pad" }, problemBanner(error)));
    }
  }

  drawForOthers({ role, projects, name, by }) {
    fill(
      this.element,
      h("header", {}, h("h2", {}, "Tokens"), roleMark("admin"), h("span", { class: "spring" }), canSignOut(by) && this.signOutButton()),
      h(
        "div",
        { class: "pad" },
        h(
          "p",
          { class: "muted" },
          by === "token" && `Your token has the role ${role}: it ${ROLES[role]}. `,
          isUser(by) && `${signedIn(name, by)} and have the role ${role}, which ${ROLES[role]}. `,
          projects && boundTo(projects, by),
          "Tokens are made by an admin, or on the server's machine with ",
          h("code", {}, "vramscope token create NAME"),
          ".",
        ),
      ),
    );
  }

  draw(tokens) {
    if (!this.form) {
      // built once, to keep the typed text and the focus
      this.form = this.makeForm();
      this.secret = h("div", { "aria-live": "polite" });
      this.signedIn = h("span");
      this.explanation = h("p", { class: "muted" });
      this.list = h("div", { class: "scroll" });
    }
    if (!this.form.isConnected) {
      fill(
        this.element,
        h("header", {}, h("h2", {}, "Tokens"), roleMark("admin"), h("span", { class: "spring" }), this.signedIn),
        h("div", { class: "pad stack" }, this.explanation, rolesList(), this.secret, this.list, this.form),
      );
    }
    const { required, projects, name, by } = store.get().session ?? {};
    fill(this.signedIn, canSignOut(by) && this.signOutButton());
    fill(
      this.explanation,
      isUser(by) && `${signedIn(name, by)} and have the role admin. `,
      required
        ? "This server requires tokens. "
        : "This server listens on loopback only and requires no tokens. It requires them where it listens on another address. ",
      "A training needs a token with the role write. A token that is bound to projects sees, changes and sends only their runs.",
      projects && ` Your ${isUser(by) ? "access" : "token"} is bound to ${projects.join(", ")}.`,
    );
    this.list.hidden = tokens.length === 0;
    fill(this.list, tokenTable(tokens.map((token) => this.tokenRow(token))));
  }

  makeForm() {
    const name = h("input", {
      type: "text",
      required: true,
      maxlength: "100",
      placeholder: "Purpose, such as: cluster",
      "aria-label": "Name of the new token",
    });
    const role = h(
      "select",
      { "aria-label": "Role of the new token" },
      Object.entries(ROLES).map(([word, meaning]) => h("option", { value: word, title: meaning }, word)),
    );
    const projects = h("input", {
      type: "text",
      placeholder: store.get().session?.projects ? "Your projects, or: a, b" : "All projects, or: a, b",
      "aria-label": "Projects of the new token, separated by commas",
    });
    const status = h("span", { class: "muted", role: "status" });
    const form = h(
      "form",
      { class: "token-form" },
      name,
      role,
      projects,
      h("button", { class: "button primary", type: "submit" }, "Create token"),
      status,
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        const made = await api.createToken(name.value.trim(), role.value, split(projects.value));
        status.textContent = "";
        fill(this.secret, newToken(made.token));
        this.load();
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
    const button = confirmButton("Revoke", "Revoke permanently?", async () => {
      try {
        await api.revokeToken(token.id);
        this.load();
      } catch (error) {
        fill(this.secret, problemBanner(error));
      }
    });
    return h(
      "tr",
      {},
      h("td", {}, token.name),
      h("td", {}, h("span", { class: "chip", title: ROLES[token.role] }, token.role)),
      h("td", {}, token.projects ? token.projects.join(", ") : h("span", { class: "muted" }, "all")),
      h("td", { class: "created" }, when(token.created_seconds, "unknown")),
      h("td", {}, when(token.last_used_seconds, "never")),
      h("td", { class: "number" }, button),
    );
  }

  signOutButton() {
    const signOut = async () => {
      await api.signOut();
      location.href = "/runs";
    };
    return h("button", { class: "button small", type: "button", onclick: signOut }, "Sign out");
  }
}

const signedIn = (name, by) => `You are signed in as ${name} by the ${by === "oidc" ? "OpenID provider" : "proxy"}`;
const boundTo = (projects, by) =>
  by === "token"
    ? `It is bound to ${projects.join(", ")} and sees only the runs of these projects. `
    : `You see only the runs of ${projects.join(", ")}. `;
const isUser = (by) => by === "proxy" || by === "oidc";
/** Whoever a proxy signs in is signed out there. */
const canSignOut = (by) => by === "token" || by === "oidc";

/** "a, b" -> ["a", "b"]. */
const split = (text) =>
  text
    .split(",")
    .map((part) => part.trim())
    .filter(Boolean);

/** A new token, which no later answer contains. */
export function newToken(text) {
  return h(
    "div",
    { class: "banner good" },
    h("strong", {}, "Copy it now. It is shown only once."),
    h(
      "span",
      { class: "secret" },
      h("code", {}, text),
      copyButton("Copy", () => text),
    ),
  );
}

function tokenTable(rows) {
  return h(
    "table",
    { class: "plain" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["Name", "Role", "Projects", "Created", "Last used", ""].map((head) =>
          h("th", { scope: "col", class: head.toLowerCase().replace(" ", "-") || null }, head),
        ),
      ),
    ),
    h("tbody", {}, rows),
  );
}
