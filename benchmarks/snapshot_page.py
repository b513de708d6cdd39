"""Measures the time from the end of an upload to the first picture of a snapshot in Chromium.

    python benchmarks/snapshot_page.py [FILE ...]

Without FILE it makes two files: the real allocator's history of a training on the emulated GPU, and a million allocations, each
with a stack of its own. Goal: a first picture of a million events within 3 s. The coarse picture appears when the server has read
the file, and the timeline when it has converted it. Processor time is that of the server and its conversion, from the choice of
the file to each picture. It includes the upload and the start of the conversion's process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import psutil
from page_browser import close, new_page
from playwright.sync_api import sync_playwright
from serving import Serving
from snapshots import made

# Notes when the server had the whole file, and when each picture was there, after two more frames: then it is on the screen.
WATCH = """
window.noted = {};
const note = (name) => {
  if (name in window.noted) return;
  window.noted[name] = null;
  requestAnimationFrame(() => requestAnimationFrame(() => (window.noted[name] = performance.now())));
};
new MutationObserver(() => {
  if (document.querySelector("[data-coarse-curve]")) note("coarse");
  if (document.querySelector("vs-chart[data-figure=timeline][data-draws]")) note("timeline");
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-draws"] });
const send = window.fetch;
window.fetch = (...words) => {
  const bodies = String(words[0]?.url ?? words[0]).includes("/snapshots/uploads");
  if (bodies) window.noted.sent = performance.now(); // the last of them completes the upload: its parts are there
  return send(...words);
};
"""


def processor_seconds(server: int) -> float:
    """Processor time of a server and its conversions, ended ones included."""
    process = psutil.Process(server)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


def measured(driver: Any, serving: Serving, path: Path) -> list[float]:
    """Seconds until the coarse picture and until the timeline, and processor seconds until each."""
    page = new_page(driver)
    page.add_init_script(WATCH)
    page.goto(f"{serving.url}/snapshots")
    page.wait_for_timeout(2_000)
    before = processor_seconds(serving.pid)
    page.set_input_files("input[type=file]", path)
    page.locator("[data-coarse-curve]").wait_for(timeout=120_000)
    coarse = processor_seconds(serving.pid)
    page.locator("vs-chart[data-figure=timeline][data-draws]").wait_for(timeout=300_000)
    timeline = processor_seconds(serving.pid)
    page.wait_for_timeout(500)
    noted = page.evaluate("window.noted")
    close(page)
    wall = [(noted[name] - noted["sent"]) / 1000 for name in ("coarse", "timeline")]
    return [*wall, coarse - before, timeline - before]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="snapshot files; two are made without one")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the recorded training")
    parser.add_argument(
        "--stacks", type=int, default=1_000_000, help="events of the file with different stacks; 0: no such file"
    )
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        print(f"{'':24}{'coarse, s':>12}{'timeline, s':>12}{'CPU s':>8}{'CPU s':>8}{'load':>6}")
        for path in words.files or made(words, Path(scratch)):
            with Serving() as serving:
                coarse, timeline, *used = measured(driver, serving, path)
            print(
                f"{path.name:24}{coarse:12.2f}{timeline:12.2f}{used[0]:8.2f}{used[1]:8.2f}{os.getloadavg()[0]:6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
