/** Page for an unknown run or path, with links to other runs. */

import { h, fill } from "vramscope/dom.js";
import { api } from "vramscope/api.js";

/** Run that a path names. Null if it names none, or cannot be decoded. */
function runOf(path) {
  try {
    return path.startsWith("/runs/") ? decodeURIComponent(path.slice(6)) : null;
  } catch {
    return null;
  }
}

/** `problem`: refusal of the server, if there was one. */
export function open(root, { path, problem }) {
  document.title = "Not found · vramscope";
  const nearby = h("div");
  const run = runOf(path);
  const isRun = run !== null;
  fill(
    root,
    h(
      "section",
      { class: "card not-found" },
      h("h1", {}, isRun ? "Run not found" : "Page not found"),
      isRun
        ? h("p", {}, "No run has the id or name ", h("code", {}, run), ".")
        : h("p", {}, problem?.detail ?? ["No page at ", h("code", {}, path), "."]),
      nearby,
      h(
        "p",
        {},
        h("a", { href: "/runs" }, "All runs"),
        " · ",
        h("a", { href: "/snapshots" }, "Snapshots"),
        " · ",
        h("a", { href: "/compare" }, "Compare"),
        " · ",
        h("a", { href: "/settings" }, "Settings"),
      ),
    ),
  );
  offer(nearby, problem?.suggestions ?? []);
  return { close() {} };
}

async function offer(place, suggestions) {
  let entries = suggestions.map((run) => (typeof run === "string" ? { run_id: run, name: run } : run));
  let title = "Did you mean";
  if (entries.length === 0) {
    try {
      // The list begins with the baselines and the pinned runs, however old they are.
      const { runs } = await api.runs({ limit: 100 });
      entries = runs.toSorted((a, b) => b.started_seconds - a.started_seconds).slice(0, 5);
      title = "Newest runs";
    } catch {
      return;
    }
  }
  if (entries.length === 0) return;
  fill(
    place,
    h("h2", {}, title),
    h(
      "ul",
      {},
      entries.map((run) => h("li", {}, h("a", { href: `/runs/${encodeURIComponent(run.run_id)}` }, run.name))),
    ),
  );
}
