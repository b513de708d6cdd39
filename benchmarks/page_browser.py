"""Browsers of pages.py, and the scripts that observe a page in them."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from typing import Any

from playwright.sync_api import Page
from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-headless-shell") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Notes the moment each chart was first drawn, after two more frames: then it is on the screen.
FIRST_DRAWS = """
window.firstDraws = {};
new MutationObserver((changes) => {
  for (const { target } of changes) {
    const name = target.dataset?.figure;
    if (!name || !target.dataset.draws || name in window.firstDraws) continue;
    window.firstDraws[name] = null;
    requestAnimationFrame(() => requestAnimationFrame(() => (window.firstDraws[name] = performance.now())));
  }
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-draws"] });
"""

# Frames, long tasks, and how old each sample was when the frame that shows it came.
WATCH = """
(figure) => {
  const chart = document.querySelector(`vs-chart[data-figure=${figure}]`);
  const zero = chart.figure.layout.meta.x0_seconds;
  const seen = { frames: [], tasks: [], shown: [], draws: {}, drawMs: [] };
  window.seen = seen;
  let last = performance.now();
  const frame = (now) => { seen.frames.push(now - last); last = now; window.watching = requestAnimationFrame(frame); };
  window.watching = requestAnimationFrame(frame);
  new PerformanceObserver((list) => list.getEntries().forEach((entry) => seen.tasks.push(entry.duration)))
    .observe({ type: "longtask" });
  let newest = Math.max(...chart.traces.map((trace) => trace.x.at(-1) ?? 0));
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const name = target.dataset?.figure;
      if (!name) continue;
      seen.draws[name] = (seen.draws[name] ?? 0) + 1;
      seen.drawMs.push(Number(target.dataset.drawMs));
      if (name !== figure) continue;
      const samples = chart.traces.find((trace) => trace.meta.role === "process-rss" && trace.meta.part !== "min");
      const from = samples.x.findIndex((x) => x > newest);
      const fresh = from < 0 ? [] : Array.from(samples.x.slice(from), (x, at) => [x, samples.y[from + at]]);
      newest = Math.max(newest, samples.x.at(-1));
      requestAnimationFrame(() => {
        const now = (performance.timeOrigin + performance.now()) / 1000;
        for (const [x, y] of fresh) seen.shown.push([zero + x, y, now]);
      });
    }
  }).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-draws"] });
}
"""

# What the key figure of allocated memory says, and when.
WATCH_ALLOCATED = """
() => {
  window.allocated = [];
  const value = document.querySelector("[data-kpi=allocated] .value");
  const units = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };
  new MutationObserver(() => {
    const [number, unit] = value.textContent.split(" ");
    requestAnimationFrame(() => {
      const now = (performance.timeOrigin + performance.now()) / 1000;
      window.allocated.push([now, Number(number) * units[unit]]);
    });
  }).observe(value, { subtree: true, childList: true, characterData: true });
}
"""

# When a link was clicked, and when the page changed last.
WATCH_CHANGES = """
() => {
  document.addEventListener("click", () => (window.clicked = performance.now()), true);
  new MutationObserver(() => (window.changed = performance.now()))
    .observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true });
}
"""


class MainThread:
    """Processor time of a page's main thread, as Chromium counts it."""

    def __init__(self, page: Page) -> None:
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def cpu_seconds(self) -> float:
        """Seconds of all tasks since the page was opened."""
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")


def new_page(driver: Any) -> Page:
    """A browser of its own with an empty profile and an empty cache."""
    browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
    page: Page = browser.new_page(viewport={"width": 1440, "height": 900})
    return page


def close(page: Page) -> None:
    browser = page.context.browser
    assert browser is not None
    browser.close()


class Unwatched:
    """A browser as people have it: with an empty profile, and nobody who listens to its JavaScript.

    Playwright listens always (Runtime.enable), and for a listener V8 places every stack in its file: while Plotly.js starts, it
    read three of its functions, of megabytes each, once more. 500 ms of the main thread that no reader of the page pays.
    """

    def __init__(self, folder: str) -> None:
        words = [
            CHROMIUM,
            "--headless",
            *FLAGS,
            f"--user-data-dir={folder}",
            "--remote-debugging-port=0",
            "about:blank",
        ]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        listening = next(line for line in self.process.stderr if "DevTools listening on" in line)
        self.opened = contextlib.ExitStack()
        self.socket: ClientConnection = self.opened.enter_context(connect(listening.split()[-1], max_size=None))
        self.calls = 0
        self.session: str | None = None
        [page] = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        self.call("Emulation.setDeviceMetricsOverride", width=1440, height=900, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **parameters: Any) -> Any:
        self.calls += 1
        words = {"id": self.calls, "method": method, "params": parameters}
        self.socket.send(json.dumps(words | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv(30))
            if answer.get("id") == self.calls:
                return answer["result"]

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def close(self) -> None:
        self.call("Browser.close")
        self.opened.close()
        self.process.wait(20)
