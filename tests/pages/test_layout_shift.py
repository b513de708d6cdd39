"""Nothing on a page moves because something else arrives: what is read or clicked stays where it is."""

from __future__ import annotations

from typing import Any

import pytest
import sender
from legibility import SETTLED
from test_fragmentation_page import Sender
from waiting import eventually
from window_maker import training

MOST = 0.05
"""Half of what web.dev calls good. The score is the share of the screen that moved times how far it moved."""

WATCH = """globalThis.shifts = [];
new PerformanceObserver((list) => {
  for (const { value, sources } of list.getEntries())
    shifts.push([value, sources.map(({ node }) => node?.className || node?.nodeName)]);
}).observe({ type: "layout-shift", buffered: true })"""


@pytest.fixture(scope="module")
def recording(server: Any) -> str:
    """Path of a run with samples and a recording."""
    run = Sender(server.url, "does not move")
    run.send(run.agent.samples(20), run.agent.steps(4))
    run.record(training(3, 12))
    run.send(run.agent.ended())
    return f"/runs/{run.agent.run}"


@pytest.mark.parametrize("width", [1440, 400])
@pytest.mark.parametrize(
    ("path", "last"),
    [
        (f"/runs/{sender.BASELINE.run}", "vs-chart[data-figure=stack][data-draws]"),
        (f"/runs/{sender.TOO_LARGE.run}/memory", ".before-failure [data-changed]"),
        ("{recording}/fragmentation", "[data-advice]"),
        ("{recording}/anatomy", "vs-chart[data-figure=timeline][data-draws]"),
        ("/snapshots", ".snapshot-list h2"),
        ("/settings", ".audit"),
    ],
    ids=["run", "failed run", "fragmentation", "anatomy", "snapshots", "settings"],
)
def test_a_page_does_not_move_while_it_loads(
    page: Any, server: Any, recording: str, path: str, last: str, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900 if width > 1000 else 800})
    page.add_init_script(WATCH)
    page.goto(server.url + path.format(recording=recording))
    page.locator(last).first.wait_for(state="attached", timeout=150_000)
    eventually(lambda: page.evaluate(SETTLED), what="charts that wait for nothing")
    page.wait_for_timeout(500)
    shifts = page.evaluate("shifts")
    assert sum(value for value, _ in shifts) < MOST, shifts
