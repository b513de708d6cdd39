"""Measures the timeline of a recording of 2,000,000 events: the time of each answer, and the longest frame while panning and
zooming.

    python benchmarks/timeline.py            # prints text
    python benchmarks/timeline.py --json     # prints one JSON object

Goal: no frame over 0.1 s while panning and zooming. The recording is generated (tests/backend/window_maker.py). Server and
browser share the machine, and the browser draws in software.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from pages import close, new_page
from playwright.sync_api import Page, sync_playwright
from serving import Serving

from vramscope.protocol import messages
from vramscope.protocol.window import pack

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "backend"))
EVENTS_A_STEP = 570
FRAMES = """
() => {
  window.frames_seen = [];
  let last = performance.now();
  const frame = (now) => { window.frames_seen.push(now - last); last = now; window.watching = requestAnimationFrame(frame); };
  window.watching = requestAnimationFrame(frame);
}
"""


def post(url: str, agent: Any, message: messages.Message) -> None:
    answer = httpx.post(
        f"{url}/api/v1/batches",
        content=agent.body(message),
        headers={"Content-Type": messages.CONTENT_TYPE},
        trust_env=False,
        timeout=60,
    )
    answer.raise_for_status()


def send(url: str, events: int) -> tuple[str, str, int]:
    """A recording of about this number of events: its run, its id and the exact number."""
    from window_maker import training
    from wire_maker import Agent, new_id

    window = training(max(2, events // EVENTS_A_STEP), 48, width=256, small=8)
    data, agent, ident = pack(window), Agent(new_id("benchrun"), name="benchmark"), new_id("benchwindow")
    count = len(window.events["action"]) // 8
    parts = [data[at : at + messages.MAX_PIECE_BYTES] for at in range(0, len(data), messages.MAX_PIECE_BYTES)]
    for number, part in enumerate(parts):
        about: dict[str, messages.Scalar] = {"events": count, "first_step": 0, "last_step": window.last_step}
        post(
            url,
            agent,
            messages.Piece(artifact=ident, kind="window", number=number, pieces=len(parts), about=about, data=part),
        )
    return agent.run, ident, count


def answers(url: str, ident: str, events: int) -> dict[str, float]:
    """Seconds of each question: the first time that it is asked, and the median of five more."""
    middle, near = events // 2, {"from": events // 2, "to": events // 2 + 20_000}
    questions: dict[str, tuple[str, dict[str, Any]]] = {
        "open": ("moments", {}),
        "areas": ("timeline", {}),
        "areas by line": ("timeline", {"by": "site"}),
        "areas of a quarter": ("timeline", {"from": middle, "to": middle + events // 4}),
        "allocations of all": ("allocations", {}),
        "allocations of 20,000 events": ("allocations", near),
        "under the pointer": ("at", {"event": middle + 99, "bytes": 2**28, "detail": "allocations", **near}),
        "flamegraph": ("flame", {"event": middle}),
        "two moments": ("between", {"a": 1000, "b": middle}),
    }
    found = {}
    with httpx.Client(base_url=f"{url}/api/v1/recordings/{ident}/", trust_env=False, timeout=120) as client:
        for name, (part, asked) in questions.items():
            seconds = []
            for _ in range(6):
                began = time.perf_counter()
                client.get(part, params=asked).raise_for_status()
                seconds.append(time.perf_counter() - began)
            found[f"{name}, first"] = seconds[0]
            found[name] = statistics.median(seconds[1:])
    return found


def settled(page: Page) -> None:
    page.wait_for_function("() => !document.querySelector('vs-chart.timeline').request")
    page.wait_for_timeout(700)


def frames(page: Page, url: str) -> dict[str, float]:
    """Milliseconds: from the address to the first picture, and the frames while the page is panned and zoomed."""
    began = time.perf_counter()
    page.goto(url)
    page.wait_for_selector("vs-chart[data-figure=timeline][data-draws]", timeout=120_000)
    first = (time.perf_counter() - began) * 1000
    settled(page)
    page.locator("vs-chart.timeline").scroll_into_view_if_needed()
    box = page.locator("vs-chart.timeline .plot").bounding_box()
    assert box is not None
    page.evaluate(FRAMES)
    for low, high in ((0.3, 0.6), (0.2, 0.5), (0.4, 0.6), (0.3, 0.7)):  # closer and closer
        at = [box["x"] + 60 + share * (box["width"] - 80) for share in (low, high)]
        page.mouse.move(at[0], box["y"] + 200)
        page.mouse.down()
        page.mouse.move(at[1], box["y"] + 200, steps=20)
        page.mouse.up()
        settled(page)
    page.locator("h1").click()
    for key in ("]", "]", "[", "]", "["):
        page.keyboard.press(key)
        settled(page)
    page.keyboard.press("Escape")
    settled(page)
    seen: list[float] = page.evaluate("() => { cancelAnimationFrame(window.watching); return window.frames_seen; }")
    seen.sort()
    return {
        "first_picture_ms": first,
        "frames": len(seen),
        "frame_p95_ms": seen[int(0.95 * (len(seen) - 1))],
        "longest_frame_ms": seen[-1],
        "frames_over_100_ms": sum(one > 100 for one in seen),
    }


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--events", type=int, default=2_000_000, help="events of the recording")
    words.add_argument("--json", action="store_true", help="print one JSON object")
    asked = words.parse_args()
    with Serving() as serving:
        run, ident, count = send(serving.url, asked.events)
        found: dict[str, Any] = {
            "events": count,
            "cores": os.cpu_count(),
            "seconds": answers(serving.url, ident, count),
        }
        with sync_playwright() as driver:
            page = new_page(driver)
            page.context.set_default_timeout(60_000)
            found["page"] = frames(page, f"{serving.url}/runs/{run}/anatomy")
            close(page)
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{count:,} events, {found['cores']} cores")
    for name, seconds in found["seconds"].items():
        print(f"  {name:40} {seconds:8.3f} s")
    for name, value in found["page"].items():
        print(f"  {name:40} {value:8.0f}")


if __name__ == "__main__":
    main()
