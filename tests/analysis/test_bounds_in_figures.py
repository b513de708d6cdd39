"""Peaks that are lower bounds are marked in the figures of several runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_figures import GIB, a_window

from vramscope_server.analysis.series.chart_data import RunWindow
from vramscope_server.figures.registry import COMPARE_FIGURES

MARKED = ("peaks_over_steps", "peaks_side_by_side", "memory_against_time")


def known(name: str, **facts: Any) -> RunWindow:
    window = a_window(name=name)
    return replace(window, run={**window.run, **facts})


def notes(figure: Any, name: str) -> list[str]:
    return [note.text for note in figure.layout.annotations if note.name == name]


def hovers(figure: Any) -> list[str]:
    return [trace.hovertemplate for trace in figure.data if trace.meta["role"] in ("baseline", "run-0")]


@pytest.mark.parametrize("name", MARKED)
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"sampled_allocated_bytes": 9 * GIB}, "a rank has samples alone"),
        ({"lower_bound_steps": 2}, "other code reset the peak counters"),
    ],
)
def test_a_run_whose_peak_is_a_lower_bound_is_named(name: str, facts: dict[str, Any], why: str) -> None:
    figure = COMPARE_FIGURES[name].draw([known("exact"), known("bound", **facts)])
    assert notes(figure, "statement") == [f"≥ bound: the peak may be higher, because {why}"]
    if name == "peaks_side_by_side":
        marks = [note for note in figure.layout.annotations if note.name == "bound"]
        assert [(mark.text, mark.x) for mark in marks] == [("≥", "bound")]
    else:
        assert [text.startswith("≥") for text in hovers(figure)] == [False, True]
    if name == "memory_against_time":
        symbols = [trace.marker.symbol for trace in figure.data if trace.meta["kind"] == "marker"]
        assert symbols == ["diamond", "circle-open"]


@pytest.mark.parametrize("name", MARKED)
def test_exact_peaks_have_no_mark(name: str) -> None:
    figure = COMPARE_FIGURES[name].draw([known("a"), known("b")])
    assert notes(figure, "statement") == notes(figure, "bound") == []
    assert "≥" not in "".join(hovers(figure))


def test_of_many_lower_bounds_the_note_gives_the_number() -> None:
    windows = [known(f"run {at}", lower_bound_steps=int(at < 5)) for at in range(9)]
    figure = COMPARE_FIGURES["peaks_over_steps"].draw(windows)
    assert "≥ 5 of 9 runs: the peak may be higher" in notes(figure, "statement")


def test_a_run_with_samples_alone_has_a_bar_at_its_highest_sample() -> None:
    window = a_window(name="sampled", unknown=("peak_",))
    facts = {"peak_allocated_bytes": None, "sampled_allocated_bytes": 9 * GIB}
    sampled = replace(window, run={**window.run, **facts})
    figure = COMPARE_FIGURES["peaks_side_by_side"].draw([known("exact"), sampled])
    bars = [trace for trace in figure.data if trace.meta["label"] == "allocated, categories unknown"]
    assert [bar.y[1] for bar in bars] == [pytest.approx(9)]
    assert notes(figure, "bound") == ["≥"]
    assert not any("unknown step peaks" in note for note in notes(figure, "statement"))
