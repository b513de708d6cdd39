/** Sign-in page. The server keeps the token in a cookie that scripts cannot read. It also says why a provider refused. */

import { h, fill } from "vramscope/dom.js";
import { api } from "vramscope/api.js";
import { snippet } from "vramscope/parts/ui.js";

const REFUSAL = "vramscope_sign_in_refusal"; // cookie of backend/vramscope_server/api/oidc_session.py

/** Reason why the last sign-in at the provider was refused, or null. It is shown once. */
function takeRefusal() {
  const found = document.cookie.split("; ").find((cookie) => cookie.startsWith(`${REFUSAL}=`));
  if (!found) return null;
  document.cookie = `${REFUSAL}=; path=/sign-in; max-age=0; samesite=strict`;
  return decodeURIComponent(found.slice(REFUSAL.length + 1));
}

export function open(root, { onSignedIn }) {
  document.title = "Sign in · vramscope";
  const field = h("input", {
    type: "password",
    name: "token",
    autocomplete: "current-password",
    required: true,
    "aria-label": "Token",
    placeholder: "Token",
  });
  const status = h("p", { class: "muted", role: "status" });
  const button = h("button", { class: "button primary", type: "submit" }, "Sign in");
  const form = h("form", {}, field, button, status);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    status.textContent = "";
    try {
      await api.signIn(field.value.trim());
      onSignedIn();
    } catch (error) {
      status.textContent = error.status === 401 ? "Unknown or revoked token." : error.message;
      field.select();
    } finally {
      button.disabled = false;
    }
  });
  const elsewhere = h("p", { class: "sign-in-elsewhere", hidden: true });
  const refusal = takeRefusal();
  const required = h("p", {}, "This server requires a token.");
  const offerProvider = ({ oidc, required: isRequired }) => {
    if (isRequired === false) fill(required, "This server requires no token: ", h("a", { href: "/runs" }, "open the runs"), ".");
    if (!oidc) return;
    fill(elsewhere, h("a", { class: "button", href: "/api/v1/session/oidc" }, refusal ? "Try again at your provider" : "Sign in at your provider"));
    elsewhere.hidden = false;
  };
  api.session().then(offerProvider, () => {}); // (without an answer the form remains)
  fill(
    root,
    h(
      "section",
      { class: "card sign-in" },
      h("h1", {}, "Sign in"),
      refusal &&
        h("div", { class: "banner bad", role: "alert" }, h("strong", {}, "The sign-in was refused."), ` ${refusal}`),
      required,
      form,
      elsewhere,
      h(
        "p",
        { class: "muted" },
        "The server printed its first token when it first started. An admin creates more in Settings. On the server's machine, this command prints a new one:",
      ),
      snippet("vramscope token create me --role admin"),
    ),
  );
  field.focus();
  return { close() {} };
}
