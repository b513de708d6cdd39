"""Waiting for what a page shows, as its reader would."""

from __future__ import annotations

from typing import Any

from waiting import eventually

COMPILED_MS = 150_000
"""What is made of a recording for the first time on a machine is compiled first: half a minute, or more where others use it too."""


def query(page: Any) -> dict[str, str]:
    """The view in the URL; asked of the page, because ``page.url`` stands still while nobody talks to the browser."""
    return dict(page.evaluate("Object.fromEntries(new URLSearchParams(location.search))"))


def drawn(page: Any, name: str) -> Any:
    """The chart of a figure, once it has been drawn at least once (scrolled into view, as a reader would).

    Again and again: what comes above it meanwhile may push it out of sight before it begins, and out of sight nothing is drawn.
    """
    chart = page.locator(f"vs-chart[data-figure={name}]")

    def started() -> Any:
        chart.evaluate(
            "(chart) => chart.scrollIntoView({ block: 'center' })"
        )  # at once: no waiting until nothing moves
        return chart.get_attribute("data-draws")

    eventually(started, COMPILED_MS / 1000, f"the figure {name}")
    return chart


def part_on_first_screen(page: Any, plot: Any) -> float:
    """Part of a plot's height that is above the bar at the bottom of a phone's screen."""
    box, bar = plot.bounding_box(), page.locator(".rail").bounding_box()["y"]
    return max(0.0, min(1.0, (bar - box["y"]) / box["height"]))
