/** State that pages share. The view itself is in the URL, so a link reproduces it. */

/**
 * Creates a small observable store: `get()`, `set(patch)`, `watch(listener) -> stop`. Listeners run once per microtask.
 */
export function createStore(state) {
  const listeners = new Set();
  let scheduled = false;
  return {
    get: () => state,
    set(patch) {
      if (Object.entries(patch).every(([key, value]) => Object.is(state[key], value))) return;
      state = { ...state, ...patch };
      if (scheduled) return;
      scheduled = true;
      queueMicrotask(() => {
        scheduled = false;
        for (const listener of [...listeners]) listener(state);
      });
    },
    watch(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/**
 * `live`: state of the connection (connecting, live, stale, paused, asleep) and since when it is stale. `paused`: live
 * data are not drawn, from the URL. `problems`: problems of the server.
 */
export const store = createStore({
  ...here(),
  live: { state: "connecting", staleSince: null },
  session: null,
  problems: [],
});

function here() {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  return { path: location.pathname, query, paused: query.paused === "1" };
}

/** Opens another page. */
export function go(href, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", href);
  store.set(here());
}

/** Pauses or resumes drawing of live data. */
export function togglePause() {
  setQuery({ paused: store.get().paused ? null : 1 });
}

/** Changes parameters of the URL. Null removes one. Replaces the history entry unless `push` is set. */
export function setQuery(patch, { push = false } = {}) {
  const next = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(patch)) {
    if (value === null || value === undefined || value === "") next.delete(key);
    else next.set(key, String(value));
  }
  const text = next.toString();
  go(location.pathname + (text ? `?${text}` : ""), { replace: !push });
}

addEventListener("popstate", () => store.set(here()));

/** Handles clicks on links to our own pages without a reload. */
export function followLinks(root) {
  root.addEventListener("click", (event) => {
    if (
      event.defaultPrevented ||
      event.button !== 0 ||
      event.metaKey ||
      event.ctrlKey ||
      event.shiftKey ||
      event.altKey
    )
      return;
    const link = event.target.closest?.("a[href]");
    if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
    if (link.pathname.startsWith("/api/") || link.pathname.startsWith("/assets/") || link.pathname === "/metrics")
      return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}
