"""The stack of a device's memory: its parts add up, no peak is lost, and what is unknown is neither drawn nor 0."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.protocol.series import CATEGORIES
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.chart_data import RunWindow, SeriesColumn, StreamWindow
from vramscope_server.analysis.series.memory_stack import (
    PARTS,
    SAMPLE_COLUMNS,
    STEP_COLUMNS,
    StackRows,
    detailed_row,
    level_totals,
    part_sizes,
    peak_row,
    stack_rows,
    thinned,
)
from vramscope_server.figures import memory_stack

GIB = 2.0**30
S = 1e9


def a_training(
    steps: int = 100, *, unknown: tuple[str, ...] = (), tail: int = 0, seed: int = 0
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Columns of a training with steps of one second and ten samples in each, then ``tail`` samples of an unfinished step."""
    random = np.random.default_rng(seed)
    peak = 20 * GIB + 10 * GIB * random.random(steps)
    parts = {
        name: peak * share for name, share in zip(CATEGORIES, (0.1, 0.1, 0.2, 0.01, 0.45, 0.05, 0.09), strict=True)
    }
    numbers = np.arange(steps) + 1.0
    step_columns = {
        "time_ns": numbers * S,
        "step": numbers,
        "first_step": np.full(steps, np.nan),
        "duration_ns": np.full(steps, S),
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": np.full(steps, 33 * GIB),
        "foreign_reset": np.zeros(steps),
        **{f"peak_{name}_bytes": values for name, values in parts.items()},
    }
    count = steps * 10 + tail
    allocated = 15 * GIB + 4 * GIB * random.random(count)
    sample_columns = {
        "time_ns": (np.arange(count) + 1) * S / 10,
        "step": np.floor(np.arange(count) / 10),
        "allocated_bytes": allocated,
        "reserved_bytes": np.full(count, 33 * GIB),
        "active_bytes": allocated + 1000,
        "requested_bytes": allocated - GIB / 4,
        "unusable_bytes": np.where(np.arange(count) % 20 == 0, GIB, np.nan),
        "private_pools_bytes": np.zeros(count),
        "private_active_bytes": np.full(count, np.nan),
        "device_used_bytes": np.full(count, 40 * GIB),
        "process_device_bytes": np.full(count, 34 * GIB),
        "others_device_bytes": np.full(count, 5 * GIB),
    }
    for columns in (step_columns, sample_columns):
        for name in columns:
            if any(word in name for word in unknown):
                columns[name] = np.full(columns[name].size, np.nan)
    return step_columns, sample_columns


def a_window(
    steps: dict[str, FloatArray], samples: dict[str, FloatArray], *, points: int = 800, x: str = "time"
) -> RunWindow:
    def stream(name: str, columns: dict[str, FloatArray]) -> StreamWindow:
        return StreamWindow(
            stream=name,  # type: ignore[arg-type]
            x_values=columns["time_ns"] / S,
            envelope=False,
            rows=columns["time_ns"].size,
            columns={name: SeriesColumn(values, values, values) for name, values in columns.items()},
        )

    run = {"name": "run", "capacity_bytes": 80 * GIB, "peak_reserved_bytes": 33 * GIB}
    streams = {"steps": stream("steps", steps), "samples": stream("samples", samples)}
    return RunWindow(run=run, rank=0, device=0, x=x, x0_seconds=0.0, streams=streams, points=points)  # type: ignore[arg-type]


def assert_adds_up(rows: StackRows) -> None:
    sizes = part_sizes(rows)
    totals = level_totals(rows, sizes)
    inner: FloatArray = np.zeros(rows.along.size)
    for level in ("allocated", "reserved", "card"):
        parts = [sizes[part.role] for part in PARTS if part.level == level and part.shown == "open"]
        known = np.isfinite(totals[level])  # type: ignore[index]
        added = inner + np.nansum(parts, axis=0)
        np.testing.assert_allclose(added[known], totals[level][known], atol=512)  # type: ignore[index]
        assert all((values[np.isfinite(values)] >= 0).all() for values in parts)
        inner = totals[level]  # type: ignore[index]
    folded = np.nansum([sizes[name] for name in ("requested", "rounding", "allocated")], axis=0)
    np.testing.assert_allclose(folded, np.nan_to_num(rows.allocated), atol=1)


@settings(max_examples=60, deadline=None)
@given(
    st.sets(
        st.sampled_from(
            ["activations", "device_used", "process_device", "others_device", "unusable", "peak_reserved", "requested"]
        )
    ),
    st.sampled_from([0, 1, 7, 120]),
    st.sampled_from([0, 1, 35]),
    st.sampled_from([10, 50, 800]),
    st.sampled_from(["time", "step"]),
)
def test_parts_add_up_to_their_level(unknown: set[str], steps: int, tail: int, points: int, axis: str) -> None:
    rows = stack_rows(*a_training(steps, unknown=tuple(unknown), tail=tail), axis)  # type: ignore[arg-type]
    assert rows.along.size == steps + tail
    assert_adds_up(rows)
    assert_adds_up(thinned(rows, points))


def test_no_peak_is_lost_by_thinning() -> None:
    rows = stack_rows(*a_training(500), "time")
    thin = thinned(rows, 20)
    assert thin.along.size <= 21
    at, thin_at = peak_row(rows), peak_row(thin)
    assert at is not None and thin_at is not None
    assert thin.allocated[thin_at] == rows.allocated[at] and thin.step[thin_at] == rows.step[at]
    for name in CATEGORIES:
        assert thin.breakdown[name][thin_at] == rows.breakdown[name][at]


def test_a_group_of_steps_has_its_exact_peak_and_no_breakdown() -> None:
    steps, samples = a_training(10)
    steps["step"][5:] += 63
    steps["first_step"][5] = 6
    for name in CATEGORIES:
        steps[f"peak_{name}_bytes"][5] = np.nan
    rows = stack_rows(steps, samples, "step")
    sizes = part_sizes(rows)
    assert (rows.begin[5], rows.along[5]) == (5, 69)
    assert sizes["unsplit"][5] == rows.allocated[5] == steps["peak_allocated_bytes"][5]
    assert np.isnan([sizes[name][5] for name in CATEGORIES]).all()
    # thinned to one row, the breakdown is that of the highest detailed step, and the rest of the peak is unknown
    thin = thinned(rows, 1)
    assert (
        part_sizes(thin)["parameters"][0]
        == steps["peak_parameters_bytes"][np.nanargmax(steps["peak_activations_bytes"])]
    )
    assert thin.allocated[0] == steps["peak_allocated_bytes"].max()


def test_unknown_workspaces_are_part_of_other() -> None:
    """As in runs of an earlier agent. The breakdown is complete, and nothing is drawn for them."""
    steps, samples = a_training(10)
    steps["peak_other_bytes"] += steps["peak_workspaces_bytes"]
    steps["peak_workspaces_bytes"] = np.full(10, np.nan)
    rows = stack_rows(steps, samples, "step")
    assert_adds_up(rows)
    sizes, peak = part_sizes(rows), peak_row(rows)
    assert peak is not None and detailed_row(rows, peak) == peak
    assert np.isnan(sizes["workspaces"]).all() and np.isfinite(sizes["other"]).all()
    figure = memory_stack.draw(a_window(steps, samples))
    assert "workspaces" not in [trace.meta["role"] for trace in figure.data]


def test_samples_behind_the_last_step_belong_to_the_unfinished_one() -> None:
    rows = stack_rows(*a_training(5, tail=8), "time")
    assert rows.finished.sum() == 5 and rows.step[-1] == 6
    assert np.isnan(part_sizes(rows)["parameters"][-1])
    assert part_sizes(rows)["unsplit"][-1] == rows.allocated[-1]


def test_a_reading_of_unusable_bytes_far_from_the_peak_does_not_count() -> None:
    """Free memory at the reading and at the peak differ, so the reading says nothing about the peak."""
    steps, samples = a_training(4)
    sizes = part_sizes(stack_rows(steps, samples, "time"))
    assert np.isnan(sizes["unusable"]).all() and (sizes["unused"] > 0).all()
    samples["active_bytes"] = np.repeat(steps["peak_allocated_bytes"], 10)
    samples["unusable_bytes"][:] = GIB
    sizes = part_sizes(stack_rows(steps, samples, "time"))
    assert set(sizes["unusable"]) == {GIB} and np.isnan(sizes["unused"]).all()


def test_a_process_that_was_restarted_leaves_a_hole() -> None:
    steps, samples = a_training(6)
    later = 3600 * S
    steps["time_ns"][3:] += later
    samples["time_ns"][30:] += later
    window = a_window(steps, samples)
    (trace,) = [trace for trace in memory_stack.draw(window).data if trace.meta["role"] == "parameters"]
    x, y = np.array(trace.x), np.array(trace.y)
    (hole,) = np.flatnonzero(np.isnan(y))
    assert x[hole] == pytest.approx(3603), "the first step after the restart begins there"


def test_private_pools_are_no_free_memory() -> None:
    steps, samples = a_training(3)
    samples["private_pools_bytes"][:], samples["private_active_bytes"][:] = 2 * GIB, GIB
    sizes = part_sizes(stack_rows(steps, samples, "time"))
    assert set(sizes["private"]) == {GIB}
    assert_adds_up(stack_rows(steps, samples, "time"))


@pytest.mark.parametrize(
    ("unknown", "roles", "words"),
    [
        (("process_device",), ["outside"], "unknown: the share of this process outside PyTorch"),
        (("device_used", "process_device"), [], "memory outside PyTorch: unknown"),
        (("device_used",), ["context"], "other processes: unknown"),
        (("others_device",), ["context", "others", "card"], ""),
        (
            ("parameters", "gradients", "optimizer", "buffers", "activations", "workspaces", "other"),
            ["context", "others"],
            "categories at the peak",
        ),
    ],
)
def test_unreported_memory_is_unknown_and_not_zero(unknown: tuple[str, ...], roles: list[str], words: str) -> None:
    figure = memory_stack.draw(a_window(*a_training(unknown=unknown)))
    drawn = [trace.meta["role"] for trace in figure.data if trace.meta["level"] == "card"]
    assert drawn[: len(roles)] == roles if roles else drawn == []
    said = " ".join(note.text for note in figure.layout.annotations if note.name == "statement")
    assert words in said


def test_steps_with_some_unknown_categories_do_not_count_as_known() -> None:
    """As of a batch of another shape: its weights are known, its activations are drawn as unknown."""
    steps, samples = a_training(10)
    for name in ("activations", "other", "gradients"):
        steps[f"peak_{name}_bytes"][7:9] = np.nan
    figure = memory_stack.draw(a_window(steps, samples))
    said = [note.text for note in figure.layout.annotations if note.name == "statement"]
    why = "they are counted at some peaks only"
    assert f"grey: categories unknown in 2 of 10 steps; {why}" in said
    steps["first_step"] = steps["step"] - np.where(steps["step"] == 5, 1, 0)
    figure = memory_stack.draw(a_window(steps, samples))
    said = [note.text for note in figure.layout.annotations if note.name == "statement"]
    assert f"grey: categories unknown in 2 of 10 steps or groups of steps; {why}" in said


def test_legend_numbers_are_the_same_at_every_width() -> None:
    training = a_training(700)
    wide, narrow = (memory_stack.draw(a_window(*training, points=points)) for points in (4000, 30))
    assert wide.layout.meta["levels"] == narrow.layout.meta["levels"]
    assert wide.layout.meta["peak"] == narrow.layout.meta["peak"]
    numbers = [{trace.meta["role"]: trace.meta["numbers"] for trace in figure.data} for figure in (wide, narrow)]
    assert numbers[0] == numbers[1]
    assert len(narrow.data[0].x) < len(wide.data[0].x)


def test_steps_whose_counters_were_reset_are_marked() -> None:
    steps, samples = a_training(100)
    steps["foreign_reset"][[7, 8]], steps["foreign_reset"][40] = 2, 1
    steps["peak_allocated_bytes"][8] = np.nan
    figure = memory_stack.draw(a_window(steps, samples, x="step"))
    marks = {trace.meta["role"]: list(trace.x) for trace in figure.data if trace.meta["kind"] == "marker"}
    assert marks == {"lower-bound": [8], "reset": [41]}


def test_a_run_without_a_finished_step_is_drawn_from_samples() -> None:
    figure = memory_stack.draw(a_window(*a_training(0, tail=30)))
    assert figure.layout.meta["covered"] is None
    assert len(figure.data[0].x) == len(set(figure.data[0].x)) == 30
    assert {trace.meta["role"] for trace in figure.data} >= {"unsplit", "usable", "context"} - {"usable"}
    said = " ".join(note.text for note in figure.layout.annotations if note.name == "statement")
    assert "no finished step" in said


def test_columns_of_the_protocol_are_all_that_is_read() -> None:
    steps, samples = a_training(3)
    assert set(steps) == set(STEP_COLUMNS) and set(samples) == set(SAMPLE_COLUMNS)
    assert {field.name for field in dataclasses.fields(StackRows)} >= {"along", "begin", "breakdown"}


def test_reserved_memory_that_nobody_reported_is_unknown() -> None:
    """Nor are parts of it, or of the memory outside it, derived from allocated memory."""
    steps, samples = a_training(20, unknown=("reserved",))
    rows = stack_rows(steps, samples, "time")
    sizes = part_sizes(rows)
    assert np.isnan(rows.reserved).all()
    for role in ("usable", "unused", "unusable", "context", "outside", "others", "unattributed"):
        assert np.isnan(sizes[role]).all(), role
    figure = memory_stack.draw(a_window(steps, samples))
    assert figure.layout.meta["levels"]["reserved"] == {"last": None, "peak": None, "highest": None}
    assert "reserved: unknown" in " ".join(note.text for note in figure.layout.annotations)
