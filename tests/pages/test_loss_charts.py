"""The loss on the pages: one that diverges presses no other flat, and what is not finite is marked."""

from __future__ import annotations

import math
import struct
import time
from typing import Any

import numpy as np
import sender
from browsing import drawn, query
from waiting import eventually

from vramscope.protocol import messages

STEPS = 60
FALLING = [2.0 + 8 * math.exp(-step / 12) for step in range(STEPS)]
DIVERGED = [*FALLING[:30], *(3.0 * 1.6**step for step in range(30))]
LOST = [*FALLING[:41], math.nan, math.inf, *([math.nan] * 17)]
ZEROED = [*DIVERGED[:50], 0.0, *DIVERGED[51:]]


def report_of(at: float, first: int, losses: list[float]) -> messages.Scalars:
    """Losses from step ``first`` on, 0.3 s apart."""
    rows = len(losses)
    return messages.Scalars(
        rows=rows,
        time_ns=((at + 0.3 * np.arange(rows)) * 1e9).astype("<i8").tobytes(),
        step=np.arange(first, first + rows).astype("<i8").tobytes(),
        columns={"loss": struct.pack(f"<{rows}d", *losses)},
    )


def trained(server: Any, name: str, losses: list[float]) -> str:
    """A run of this number of steps with these losses; returns its id."""
    training = sender.Training(name=name, project="losses", ranks=1)
    rank = sender.Rank(server.url, training, start=time.time() - 600)
    rank.history(STEPS)
    rank.post(scalars=[report_of(rank.start, 1, losses)])
    rank.finish()
    rank.client.close()
    return training.run


AXIS = "(chart) => { const { type, range, ticktext: ticks } = chart.plot.layout.yaxis; return { type, range, ticks }; }"


def test_a_diverged_loss_presses_no_other_flat_and_the_axis_is_the_readers(page: Any, server: Any) -> None:
    runs = [
        trained(server, name, losses) for name, losses in (("falls", FALLING), ("diverges", ZEROED), ("lost", LOST))
    ]
    page.goto(f"{server.url}/compare?runs={','.join(runs)}")
    chart = drawn(page, "loss_over_steps")
    axis = chart.evaluate(AXIS)
    assert axis["type"] == "log", "chosen by itself: five decades"
    assert axis["range"][0] < math.log10(2) and axis["range"][1] > math.log10(max(DIVERGED))
    assert "10" in axis["ticks"]
    marks = chart.evaluate(
        "(chart) => chart.plot.data.filter((trace) => trace.mode === 'markers')"
        ".map((trace) => [trace.marker.symbol, trace.x[0], trace.customdata?.[0] ?? null])"
    )
    assert sorted(marks) == [["triangle-down", 51, 0], ["x", 42, None]], "not above zero, and no number, are marked"
    assert "lost: first NaN in step 42, 19 times" in chart.locator(".chart-notes").inner_text()

    button = chart.get_by_role("button", name="Log axis")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    eventually(lambda: chart.evaluate(AXIS)["type"] == "linear")
    eventually(lambda: query(page).get("loss") == "linear")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    eventually(lambda: chart.evaluate(AXIS)["type"] == "log")
    assert "loss" not in query(page), "what the figure would choose itself needs no word in the link"
    chart.get_by_role("button", name="diverges").click()
    eventually(lambda: chart.evaluate(AXIS)["range"][1] < 1.2, what="the axis close around those that are left")


def test_a_link_says_the_axis_of_a_runs_loss(page: Any, server: Any) -> None:
    page.goto(f"{server.url}/runs/{trained(server, 'falls alone', FALLING)}?loss=log")
    chart = drawn(page, "loss")
    assert chart.evaluate(AXIS)["type"] == "log", "as the link says"
    chart.get_by_role("button", name="Log axis").click()
    eventually(lambda: chart.evaluate(AXIS)["type"] == "linear")
    assert chart.evaluate("(chart) => chart.plot.layout.yaxis.title.text") == "loss"


def test_logged_metrics_share_the_time_axis_of_the_memory(page: Any, server: Any) -> None:
    training = sender.Training(name="logs metrics", project="losses")
    rank = sender.Rank(server.url, training, start=time.time() - 600)
    rank.history(STEPS)
    report = report_of(rank.start, 1, FALLING)
    rates = [1e-3 * (1 - step / STEPS) for step in range(STEPS)]
    report.columns["lr"], report.columns["accuracy"] = (
        struct.pack(f"<{STEPS}d", *values) for values in (rates, [step / STEPS for step in range(STEPS)])
    )
    rank.post(scalars=[report])
    rank.finish()
    page.goto(f"{server.url}/runs/{training.run}?x=step&from=10&to=30")
    metrics = drawn(page, "metrics")
    assert metrics.locator(".legend tbody th").all_inner_texts() == ["accuracy", "lr"]
    ranges = [
        drawn(page, name).evaluate("(chart) => chart.plot.layout.xaxis.range") for name in ("stack", "metrics", "loss")
    ]
    assert ranges == [[10, 30]] * 3
    assert metrics.evaluate("(chart) => chart.traces.find((trace) => trace.meta.label === 'lr').y[0]") == rates[9]
    page.goto(f"{server.url}/runs/{sender.BASELINE.run}")
    drawn(page, "stack")
    assert not page.locator("vs-chart[data-figure=metrics]").is_visible(), "a run that logs none"
