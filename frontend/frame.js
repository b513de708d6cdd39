/** Frame around every page. Maps a path to its page. */

import { api, onRecordingRequest, onUnauthorized } from "vramscope/api.js";
import { fill, h, setText } from "vramscope/dom.js";
import { clock } from "vramscope/format.js";
import * as keys from "vramscope/keys.js";
import * as live from "vramscope/live.js";
import { showCompiling } from "vramscope/parts/compile_notice.js";
import { icon, logo } from "vramscope/parts/icons.js";
import { followLinks, go, store } from "vramscope/store.js";
import * as themes from "vramscope/theme.js";

const PLACES = [
  ["/runs", "Runs", "runs"],
  ["/snapshots", "Snapshots", "snapshots"],
  ["/compare", "Compare", "compare"],
  ["/settings", "Settings", "settings"],
];

const SIGN_IN = "/sign-in"; // every page asks for a token where one is needed; this address always does

const RUN_PAGES = {
  "": () => import("vramscope/pages/run.js"),
  "/memory": () => import("vramscope/pages/run.js"), // the same page, also where a run without a view opens its error
  "/leaks": () => import("vramscope/pages/leaks.js"),
  "/operations": () => import("vramscope/pages/operations.js"),
  "/anatomy": () => import("vramscope/pages/anatomy.js"),
  "/fragmentation": () => import("vramscope/pages/fragmentation.js"),
  "/oom": () => import("vramscope/pages/oom.js"),
};

/** Route of a path: its key, its module and the context that the page is opened with. Pages load on first use. */
function route(path) {
  if (path === "/runs" || path === "/runs/") return { key: "/runs", load: () => import("vramscope/pages/runs.js") };
  const run = path.match(/^\/runs\/([^/]+)(\/[a-z]+)?\/?$/);
  if (run && (run[2] ?? "") in RUN_PAGES) {
    let name;
    try {
      name = decodeURIComponent(run[1]);
    } catch {
      name = null;
    }
    const load = RUN_PAGES[run[2] ?? ""];
    if (name !== null) return { key: path, load, context: { run: name } };
  }
  if (path === "/snapshots" || path === "/snapshots/")
    return { key: "/snapshots", load: () => import("vramscope/pages/snapshots.js") };
  const snapshot = path.match(/^\/snapshots\/([\w-]{1,80})\/?$/);
  if (snapshot)
    return { key: path, load: () => import("vramscope/pages/snapshot.js"), context: { snapshot: snapshot[1] } };
  if (path === "/compare") return { key: path, load: () => import("vramscope/pages/compare.js") };
  if (path === "/settings") return { key: path, load: () => import("vramscope/pages/settings.js") };
  return { key: path, load: () => import("vramscope/pages/unknown.js") };
}

const LIVE_WORDS = {
  connecting: "connecting…",
  live: "connected",
  asleep: "asleep",
};

class App extends HTMLElement {
  page = null;
  key = null;

  connectedCallback() {
    this.liveDot = h("span", { class: "live", role: "status", "aria-live": "polite" });
    this.themeButton = h("button", { class: "button quiet icon", type: "button", onclick: themes.toggleTheme });
    this.links = PLACES.map(([href, label, drawing]) => h("a", { href }, icon(drawing), label));
    this.problems = h("div", { class: "problems", role: "status" });
    this.main = h("main", { id: "main", tabindex: "-1" });
    fill(
      this,
      h(
        "header",
        { class: "top-bar" },
        h("a", { class: "brand", href: "/runs", "aria-label": "vramscope: all runs" }, logo(), "vramscope"),
        h("span", { class: "spring" }),
        this.liveDot,
        this.themeButton,
        h(
          "button",
          {
            class: "button quiet icon",
            type: "button",
            title: "Keyboard help (?)",
            "aria-label": "Keyboard help",
            onclick: keys.toggleHelp,
          },
          icon("help"),
        ),
      ),
      h("nav", { class: "rail", "aria-label": "Pages" }, this.links),
      this.problems,
      this.main,
    );
    followLinks(this);
    themes.onThemeChange(() => this.drawTheme());
    keys.onAction("theme", themes.toggleTheme);
    this.drawTheme();
    store.watch(() => this.show());
    onUnauthorized.call = () => this.signIn();
    onRecordingRequest.call = showCompiling;
    addEventListener("keydown", (event) => {
      if (event.key === "Escape") for (const menu of this.querySelectorAll("details.menu[open]")) menu.open = false;
    });
    document.addEventListener("click", (event) => {
      for (const menu of this.querySelectorAll("details.menu[open]"))
        if (!menu.contains(event.target)) menu.open = false;
    });
    this.begin();
  }

  /**
   * Starts the page before the session is known. If the server needs a token, requests are refused and sign-in opens.
   */
  async begin() {
    this.started = true;
    live.anchored();
    this.show();
    try {
      const session = await api.session();
      store.set({ session });
      if (session.required && !session.authenticated) {
        this.signIn();
        return;
      }
    } catch {
      // The server does not answer. The page reports this when it requests data.
    }
    live.start();
  }

  signIn() {
    if (this.key === "sign-in") return;
    this.key = "sign-in";
    this.toggleAttribute("data-signed-out", true);
    this.page?.close();
    this.page = null;
    import("vramscope/pages/sign_in.js").then((module) => {
      if (this.key !== "sign-in") return;
      this.page = module.open(this.main, {
        onSignedIn: () => {
          this.endSignIn();
          if (store.get().path === SIGN_IN) go("/runs", { replace: true });
          this.begin();
        },
      });
    });
  }

  endSignIn() {
    this.key = null;
    this.signInByAddress = false;
    this.removeAttribute("data-signed-out");
  }

  drawTheme() {
    const dark = themes.theme() === "dark";
    const words = dark ? "Light theme (d)" : "Dark theme (d)";
    fill(this.themeButton, icon(dark ? "sun" : "moon"));
    this.themeButton.title = words;
    this.themeButton.setAttribute("aria-label", words);
  }

  show() {
    const state = store.get();
    this.drawLive(state);
    this.drawProblems(state.problems);
    const left = this.signInByAddress && state.path !== SIGN_IN;
    if (!this.started || (this.key === "sign-in" && !left)) return;
    if (left) this.endSignIn();
    if (state.path === SIGN_IN) {
      this.signIn();
      this.signInByAddress = true;
      return;
    }
    if (state.path === "/") {
      go("/runs", { replace: true });
      return;
    }
    for (const link of this.links) {
      const here = state.path === link.pathname || state.path.startsWith(`${link.pathname}/`);
      if (here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    const { key, load, context } = route(state.path);
    if (key === this.key) {
      this.page?.update?.(state);
      return;
    }
    this.key = key;
    this.page?.close();
    this.page = null;
    load().then(
      (module) => {
        if (this.key !== key) return;
        scrollTo(0, 0);
        this.page = module.open(this.main, { path: state.path, ...context });
      },
      () =>
        fill(
          this.main,
          h(
            "div",
            { class: "banner bad", role: "alert" },
            h("strong", {}, "This page could not be loaded."),
            "Is the server still running?",
          ),
        ),
    );
  }

  /** Shows problems of the server on every page. */
  drawProblems(problems) {
    if (problems === this.drawnProblems) return;
    this.drawnProblems = problems;
    fill(
      this.problems,
      problems.length > 0 &&
        h(
          "div",
          { class: "banner warn" },
          problems.map((problem) => h("strong", {}, problem)),
          "Stored runs are still shown. Trainings keep new data on disk and send it later.",
        ),
    );
  }

  drawLive({ live: status, paused }) {
    const words =
      status.state === "stale"
        ? `stale since ${clock(status.staleSince)}`
        : paused
          ? "paused"
          : LIVE_WORDS[status.state];
    this.liveDot.dataset.state = paused && status.state !== "stale" ? "paused" : status.state;
    setText(this.liveDot, words);
  }
}

themes.start();
keys.start();
customElements.define("vs-app", App);
