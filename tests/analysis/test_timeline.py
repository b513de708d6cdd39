"""The timeline of a trace against the allocator's layout at every event: exact sums, and hits that match the drawing."""

from __future__ import annotations

import itertools
import json
import random
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from window_maker import MIB, Allocator, packed, recorded, training

from vramscope.protocol.series import PHASES
from vramscope.protocol.window import ACTIONS, FRAMES, Window
from vramscope_server.analysis.timeline import flamegraph as flames
from vramscope_server.analysis.timeline import grouping as groupings
from vramscope_server.analysis.timeline.allocation import allocation_at, life
from vramscope_server.analysis.timeline.axis_spans import MOST_SPANS, AxisSpans, ruler
from vramscope_server.analysis.timeline.curve import alive, allocation_curve, describe_event, shown_first, stacks_from
from vramscope_server.analysis.timeline.diff import between
from vramscope_server.analysis.timeline.grouping import BYS, OTHER, Grouping, cut_to, grouping_of, series_of
from vramscope_server.analysis.timeline.overview import overview
from vramscope_server.analysis.timeline.polygons import DrawnAllocations, drawn_of, outlines, picture_of
from vramscope_server.analysis.timeline.source_lines import Frame, sites_of
from vramscope_server.analysis.trace import export
from vramscope_server.analysis.trace.export import as_perfetto
from vramscope_server.analysis.trace.frames import is_library
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace, layout_at
from vramscope_server.analysis.trace.types import Events
from vramscope_server.figures import timeline as timeline_figure
from vramscope_server.figures import timeline_allocations as allocations_figure


def random_window(seed: int, operations: int = 120, modules: int = 0) -> Window:
    """Random allocations, frees, phases and modules. Some allocations are from before the window."""
    choose = random.Random(seed)
    allocator = Allocator()
    live = [allocator.alloc(choose.randrange(1, 6 * MIB), choose.randrange(3)) for _ in range(choose.randrange(6))]
    allocator.events = {name: [] for name in allocator.events}
    start = allocator.layout()
    for _ in range(operations):
        allocator.phase = choose.randrange(-1, len(PHASES))
        if live and choose.random() < 0.5:
            allocator.free(live.pop(choose.randrange(len(live))))
        else:
            size = int(2 ** choose.uniform(0, 26))
            live.append(allocator.alloc(size, choose.randrange(-1, 3)))
        if choose.random() < 0.02:
            allocator.empty_cache()
        allocator.step += choose.random() < 0.05
    if modules:
        allocator.events["module"] = [choose.randrange(-1, modules) for _ in allocator.events["action"]]
    names = [f"blocks.{i // 3}.part{i % 3}" for i in range(modules)]
    return recorded(start, allocator, modules=names)


def late(trace: Trace, first: int) -> Trace:
    """The window with its start overwritten."""
    rows = {one.name: getattr(trace.events, one.name)[first:] for one in fields(Events)}
    return replace(trace, start=None, events=Events(**rows))


def held_at(trace: Trace, moment: int) -> int:
    return layout_at(trace, moment).allocated_bytes


@given(
    seed=st.integers(0, 10**6), cut=st.floats(0, 0.9), low=st.floats(0, 0.9), wide=st.floats(0.02, 1), data=st.data()
)
@settings(max_examples=25, deadline=None)
def test_overview_points_match_the_allocator(seed: int, cut: float, low: float, wide: float, data: Any) -> None:
    """For any grouping and window, with and without a start. Each point is the maximum of its part."""
    trace = from_window(random_window(seed, modules=data.draw(st.sampled_from([0, 9]))))
    if cut > 0.1:
        trace = late(trace, int(cut * len(trace.events)))
    count = len(trace.events)
    first = -1 + int(low * count)
    end = min(count, first + max(1, int(wide * count)))
    truth = np.array([held_at(trace, moment) for moment in range(-1, count)])
    curve = allocation_curve(trace)
    assert np.array_equal(curve.allocated, truth)
    points = data.draw(st.sampled_from([10, 37, 1000]))
    for by in BYS:
        made = overview(curve, grouping_of(trace, curve, by), first, end, points)
        assert np.array_equal(made.held_bytes.sum(axis=0), truth[made.moment + 1])
        assert (made.held_bytes >= 0).all()
        assert made.allocated.max() == truth[first + 1 : end + 1].max() == truth[made.peak + 1]
        assert (made.moment[0], made.moment[-1]) == (first, end - 1)
        assert len(made.moment) <= points + 2


def test_many_rises_and_falls_are_drawn_at_their_highest_moments() -> None:
    trace = from_window(training(steps=120, layers=6))
    curve, count = allocation_curve(trace), len(trace.events)
    grouping = grouping_of(trace, curve, "site")
    made = overview(curve, grouping, -1, count)
    assert made.joined_cycles > 60 and len(made.moment) < made.joined_cycles
    inside = made.allocated[3:-3]
    assert inside.min() > 0.75 * inside.max(), "no valley is drawn here and left out there"
    assert made.allocated.max() == curve.allocated.max()
    few = overview(curve, grouping, 0, count // 12)
    assert few.joined_cycles == 0 and few.allocated.min() < 0.7 * few.allocated.max()
    assert "zoom in to see all events" in timeline_figure.draw(made, ruler(trace, -1, count)).to_json()


@pytest.mark.parametrize("seed", range(4))
def test_polygons_match_hits_and_fill_the_stack(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer polygons than allocations, polygons and the band add up to the allocated bytes."""
    monkeypatch.setattr("vramscope_server.analysis.timeline.polygons.MOST_DRAWN", 23)
    trace = from_window(random_window(seed, 160))
    curve = allocation_curve(trace)
    for by in BYS:
        grouping = grouping_of(trace, curve, by)
        for first, end in ((-1, len(trace.events)), (40, 170)):
            drawn = drawn_of(trace, curve, grouping, first, end)
            picture = picture_of(trace, curve, grouping, drawn)
            assert len(drawn.rows) == 23
            assert np.array_equal(picture.drawn_bytes + picture.band_bytes.sum(axis=0), picture.allocated)
            assert drawn.left_out == touching(trace, first, end) - 23
            assert np.array_equal(picture.allocated, curve.allocated[picture.moment + 1])
            size = trace.lives.size_bytes[drawn.rows]
            x, y, corners = outlines(picture, size)
            tolerance = int(curve.allocated.max() / 1000) + 1
            for moment in range(first, end, 7):
                there = set(alive(trace, moment).tolist())
                stacked = 0
                for at, row in enumerate(drawn.rows.tolist()):
                    bottom = bottom_at(x[corners[at] : corners[at + 1]], y[corners[at] : corners[at + 1]], moment)
                    assert (bottom is not None) == (row in there)
                    if bottom is None:
                        continue
                    assert abs(bottom - stacked) <= tolerance
                    found = allocation_at(trace, grouping, drawn.series, moment, stacked + int(size[at]) // 2, drawn)
                    assert (found.row, found.series, found.in_band) == (row, drawn.of_series[at], False)
                    stacked += int(size[at])
                smaller = [row for row in there if row not in drawn.rows]
                for at, name in enumerate(drawn.series.names):
                    of_series = drawn.series.of_group[grouping.group[smaller]] == at if smaller else np.zeros(0, bool)
                    held = int(trace.lives.size_bytes[smaller][of_series].sum()) if smaller else 0
                    for height in (stacked, stacked + held - 1) if held else ():
                        band = allocation_at(trace, grouping, drawn.series, moment, height, drawn)
                        assert (band.row, band.series, band.in_band) == (None, at, True), name
                        assert (band.band_count, band.band_bytes) == (int(of_series.sum()), held)
                    stacked += held
                assert stacked == curve.allocated[moment + 1]
                above = allocation_at(trace, grouping, drawn.series, moment, int(curve.allocated[moment + 1]), drawn)
                assert (above.row, above.in_band) == (None, False)


def touching(trace: Trace, first: int, end: int) -> int:
    lives = trace.lives
    return int(((lives.alloc_event < end) & (lives.free_requested_event > first)).sum())


def bottom_at(x: Any, y: Any, moment: int) -> int | None:
    """Lower edge of a polygon after an event."""
    half = len(x) // 2
    for left, right, height in zip(x[:half:2], x[1:half:2], y[:half:2], strict=True):
        if left <= moment < right:
            return int(height)
    return None


def test_in_areas_each_byte_of_a_series_belongs_to_one_of_its_allocations() -> None:
    trace = from_window(training())
    curve = allocation_curve(trace)
    grouping = grouping_of(trace, curve, "phase")
    made = overview(curve, grouping, -1, curve.end)
    moment = made.peak
    column = int(np.flatnonzero(made.moment == moment)[0])
    bottom = 0
    for series, held in enumerate(made.held_bytes[:, column].tolist()):
        rows, height = [], bottom
        while height < bottom + held:
            found = allocation_at(trace, grouping, made.series, moment, height)
            assert found.row is not None
            top = height + int(trace.lives.size_bytes[found.row])
            assert allocation_at(trace, grouping, made.series, moment, top - 1) == found
            assert found.series == series
            rows.append(found.row)
            height = top
        assert height == bottom + held
        assert len(rows) == len(set(rows))
        bottom += held
    assert bottom == held_at(trace, moment)


def test_the_last_event_is_drawn_until_the_end_of_the_window() -> None:
    """Of few events the state after the last one would have no width, and the peak would be invisible."""
    allocator = Allocator()
    allocator.free(allocator.alloc(20 * MIB, 0))
    allocator.alloc(50 * MIB, 0)
    trace = from_window(recorded(Allocator().layout(), allocator))
    curve = allocation_curve(trace)
    made = overview(curve, grouping_of(trace, curve, "site"), -1, curve.end)
    assert made.moment[-1] == made.peak == curve.end - 1
    figure = timeline_figure.draw(made, AxisSpans())
    areas = [one for one in figure.data if one.meta["kind"] == "area"]
    for one in areas:
        assert one.x[-2:].tolist() == [curve.end - 1, curve.end]
        assert one.y[-1] == one.y[-2]
    assert sum(one.y[-1] for one in areas) * areas[0].meta["divisor"] == curve.allocated[-1] == 50 * MIB


def test_reserved_memory_above_the_axis_is_stated() -> None:
    allocator = Allocator()
    cached = [allocator.alloc(30 * MIB, 0) for _ in range(4)]
    for block in cached:
        allocator.free(block)
    allocator.alloc(30 * MIB, 0)
    trace = from_window(recorded(Allocator().layout(), allocator))
    curve = allocation_curve(trace)
    grouping = grouping_of(trace, curve, "site")
    whole, end = overview(curve, grouping, -1, curve.end), overview(curve, grouping, curve.end - 1, curve.end)
    assert "above the axis" not in timeline_figure.draw(whole, AxisSpans()).to_json()
    assert "reserved: up to 120 MiB, above the axis" in timeline_figure.draw(end, AxisSpans()).to_json()


def test_many_steps_are_drawn_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramscope_server.analysis.timeline.polygons.MOST_STEPS", 100)
    trace = from_window(training(3, 24))
    curve = allocation_curve(trace)
    grouping = grouping_of(trace, curve, "category")
    drawn = drawn_of(trace, curve, grouping, -1, curve.end)
    picture = picture_of(trace, curve, grouping, drawn)
    assert len(drawn.rows) <= len(picture.event) < 100 + 2 * len(drawn.rows)
    assert set(picture.polygon.tolist()) == set(range(len(drawn.rows))), "each has its polygon"


def test_among_many_rises_only_long_lived_allocations_are_drawn_one_by_one() -> None:
    """Else those that end between two drawn moments would leave gaps below the bands."""
    trace = from_window(training(steps=120, layers=6))
    curve, count = allocation_curve(trace), len(trace.events)
    grouping = grouping_of(trace, curve, "site")
    drawn = drawn_of(trace, curve, grouping, -1, count)
    picture = picture_of(trace, curve, grouping, drawn)
    assert picture.joined_cycles == overview(curve, grouping, -1, count).joined_cycles > 60
    part = (count + 1) / len(picture.moment)
    assert 0 < len(drawn.rows) < 100
    assert (picture.until - picture.begin >= part).all()
    assert np.array_equal(picture.moment, overview(curve, grouping, -1, count).moment)
    made = allocations_figure.draw(picture, trace.lives.size_bytes[drawn.rows], ruler(trace, -1, count))
    bands = [trace for trace in made.data if trace.meta.get("band")]
    assert len({band.meta["colour"] for band in bands}) > 1, "bands have the colours of their series"
    tops = np.max([np.nanmax(band.y) for band in bands])
    assert tops * bands[0].meta["divisor"] == pytest.approx(curve.allocated.max(), rel=1e-6)
    assert "zoom in to see all events" in made.to_json()
    few = drawn_of(trace, curve, grouping, 0, count // 12)
    assert few.left_out == 0, "in a short window all are drawn"


# ---- groups ----


def test_series_keep_order_and_color_in_every_window() -> None:
    count = 60
    names = ["before the recording", *(f"me/train.py:{line} f" for line in range(count - 1))]
    grouping = Grouping("site", names, np.arange(count, dtype=np.int32), np.arange(count) - 1)
    held = np.arange(count) ** 2
    series = series_of(grouping, held)
    assert (len(series), series.joined, series.names[0], series.names[-1]) == (20, 41, names[0], OTHER)
    assert series.peak_bytes.sum() == held.sum()
    assert series.names[1:-1] == names[-18:]
    other = series_of(grouping, held[::-1])
    assert other.names[1:-1] == names[1:19]
    few = series_of(replace(grouping, names=names[:20], rank=grouping.rank[:20]), held[:20])
    assert (len(few), few.joined) == (20, 0)
    colour = dict(zip(series.names, series.keys, strict=True))
    assert colour[names[50]] == f"series-{49 % 18}"
    assert (colour[names[0]], colour[OTHER]) == ("earlier", "other")


def test_a_category_that_is_new_is_stacked_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groupings, "_STACKED", ("unknown",))
    trace = from_window(training())
    assert grouping_of(trace, allocation_curve(trace), "category").names[0] == "unknown"


def test_modules_are_cut_to_a_distinguishing_depth() -> None:
    names = [f"h.{block}.{part}" for block in range(12) for part in ("attn", "mlp")] + ["head"]
    assert cut_to(names, 30)[0] == names
    assert cut_to(names, 13)[0] == [*(f"h.{block}" for block in range(12)), "head"]
    short, code = cut_to(names, 5)
    assert (short, code.tolist()) == (["h", "head"], [0] * 24 + [1])
    assert cut_to(names, 1)[0] == ["h", "head"], "the first level stays"
    assert cut_to([], 5)[0] == []


@pytest.mark.parametrize(
    ("file", "library"),
    [
        ("/home/me/train.py", False),
        ("train.py", False),
        ("/home/me/.venv/lib/python3.11/site-packages/transformers/trainer.py", True),
        ("/usr/lib/python3/dist-packages/x.py", True),
        ("/usr/lib/python3.12/threading.py", True),
        ("C:\\Python\\Lib\\site-packages\\torch\\nn\\functional.py", True),
        ("torch/nn/modules/module.py", True),
        ("/src/pytorch/torch/optim/adamw.py", True),
        ("/home/me/torch/train.py", False),
        ("/home/me/torchtitan/train.py", False),
        ("/repo/agent/vramscope/steps/loop.py", True),
        ("<string>", True),
        ("??", True),
        ("/pytorch/c10/cuda/CUDACachingAllocator.cpp", True),
        ("/usr/src/python3.11/Objects/methodobject.c", True),
        ("./nptl/pthread_create.c", True),
        ("../sysdeps/unix/sysv/linux/x86_64/clone3.S", True),
        ("/home/me/lib/model.py", False),
    ],
)
def test_file_kinds(file: str, library: bool) -> None:
    assert is_library(file) is library


def test_source_line_is_the_innermost_user_line() -> None:
    trace = from_window(training())
    sites = sites_of(trace)
    assert [int(frame) for frame in sites.frame] == [1, 1, 0]
    assert sites.own.tolist() == [True, True, False, False, False]
    assert str(Frame("/home/me/model.py", 31, "forward")) == "me/model.py:31 forward"


# ---- one allocation ----


def test_allocation_has_sizes_events_and_source_line() -> None:
    trace = from_window(training())
    sites = sites_of(trace)
    row = int(np.flatnonzero((trace.lives.alloc_event > 0) & (trace.lives.free_requested_event < len(trace.events)))[0])
    lifetime = life(trace, sites, row, "activations")
    assert lifetime["born"] == describe_event(trace, int(trace.lives.alloc_event[row]))
    assert lifetime["freed"]["event"] - lifetime["born"]["event"] == lifetime["events"] > 0
    assert lifetime["seconds"] == pytest.approx(lifetime["events"] * 1e-6)
    assert lifetime["size_bytes"] >= lifetime["requested_bytes"] > 0
    assert [frame["library"] for frame in lifetime["stack"]] == [True, True, False, False]
    assert lifetime["freed_by"] == [], "who frees is not recorded"
    first = life(trace, sites, 0, "unknown")
    assert (first["born"], first["events"], first["freed"]) == (None, None, None)


def test_frees_with_stacks_name_their_line() -> None:
    window = training()
    events = {name: np.frombuffer(column, "<i8").copy() for name, column in window.events.items()}
    frees = events["action"] == ACTIONS.index("free_requested")
    events["stack"][frees] = 2
    columns = {name: column.tobytes() for name, column in events.items()}
    trace = from_window(msgspec.structs.replace(window, events=columns))
    sites = sites_of(trace)
    assert sites.frees_told
    row = int(np.flatnonzero((trace.lives.stack == 0) & (trace.lives.free_requested_event < len(trace.events)))[0])
    assert [frame["function"] for frame in life(trace, sites, row, "")["freed_by"]] == ["train"]
    # a history that begins later sees only the end of what was there: that is not who asked for it
    cut = late(trace, 150)
    earlier = np.flatnonzero((cut.lives.alloc_event < 0) & (cut.lives.free_requested_event < len(cut.events)))
    assert len(earlier) and (sites_of(cut).stack[earlier] == -1).all()


# ---- what is alive ----


@pytest.mark.parametrize("by", get_args(flames.FlameBy))
@pytest.mark.parametrize("libraries", [False, True])
def test_flamegraph_boxes_add_up_to_allocated_bytes(by: Any, libraries: bool) -> None:
    for seed in range(3):
        trace = from_window(random_window(seed, 200, modules=9))
        sites, curve = sites_of(trace), allocation_curve(trace)
        for moment in (-1, 60, curve.peak(-1, curve.end)):
            made = flames.flame(trace, sites, moment, by, libraries=libraries)
            assert made.total_bytes == made.focus_bytes == held_at(trace, moment)
            roots = [box for box in made.boxes if box.level == 0]
            small = made.total_bytes - sum(box.bytes for box in roots)
            assert 0 <= small <= made.left_out * made.total_bytes / 1000
            for box in made.boxes:
                if box.level:
                    assert any(
                        under.first_bytes <= box.first_bytes
                        and box.first_bytes + box.bytes <= under.first_bytes + under.bytes
                        for under in made.boxes
                        if under.level == box.level - 1
                    )
                closer = flames.flame(trace, sites, moment, by, focus=box.focus, libraries=libraries)
                assert (closer.focus_bytes, closer.total_bytes) == (box.bytes, made.total_bytes)
                assert closer.focus_names[-1] == box.name


def test_library_frames_are_folded_unless_requested() -> None:
    trace = from_window(training())
    moment = allocation_curve(trace).peak(-1, len(trace.events))
    folded = flames.flame(trace, sites_of(trace), moment)
    names = {(box.level, box.name, box.kind) for box in folded.boxes}
    assert names == {
        (0, "train train.py:87", "own"),
        (1, "forward model.py:31", "own"),
        (2, "forward linear.py:125", "library"),
        (2, "softmax functional.py:2120", "library"),
    }
    whole = flames.flame(trace, sites_of(trace), moment, libraries=True)
    assert (2, "_call_impl module.py:1751", "library") in {(box.level, box.name, box.kind) for box in whole.boxes}


def test_many_stacks_and_one_of_ten_thousand_frames_are_pruned() -> None:
    """20,000 allocations of 401 stacks, one of them very deep. backend/test_snapshots.py has as many stacks as events."""
    allocator = Allocator()
    start = allocator.layout()
    for at in range(20_000):
        allocator.alloc(512, at)
    deep = allocator.alloc(64 * MIB, 20_000)
    stacks = [[2 + at % 400, 1, 0] for at in range(20_000)] + [[*range(2, 400)] * 25 + [1, 0]]
    lines = list(range(402))
    frames = packed({"file": [0] * 402, "line": lines, "function": [1] * 402})
    assert frames.keys() == FRAMES.keys()
    trace = from_window(recorded(start, allocator, stacks=stacks, frames=frames, words=["/home/me/a.py", "f"]))
    made = flames.flame(trace, sites_of(trace), len(trace.events) - 1)
    assert made.total_bytes == 20_000 * 512 + deep.size
    assert len(made.boxes) <= flames.MOST_BOXES
    assert max(box.level for box in made.boxes) < flames.MOST_LEVELS
    assert made.left_out > 0
    assert [box.bytes for box in made.boxes if box.level == 0] == [made.total_bytes]


def test_invalid_focus_is_refused() -> None:
    trace = from_window(training())
    sites = sites_of(trace)
    moment = allocation_curve(trace).peak(-1, len(trace.events))
    deepest = flames.flame(trace, sites, moment).boxes[-1]
    with pytest.raises(flames.UnknownFocus, match="not alive"):
        flames.flame(trace, sites, -1, focus=deepest.focus)
    for nonsense in ("x", "1", "0:99", "0:0", "99999:1"):
        with pytest.raises(flames.UnknownFocus):
            flames.flame(trace, sites, moment, focus=nonsense)


@given(seed=st.integers(0, 10**6), at=st.tuples(st.floats(0, 1), st.floats(0, 1)))
@settings(max_examples=15, deadline=None)
def test_difference_is_appeared_minus_gone(seed: int, at: tuple[float, float]) -> None:
    trace = from_window(random_window(seed))
    curve = allocation_curve(trace)
    a, b = (int(part * len(trace.events)) - 1 for part in at)
    changes = between(trace, grouping_of(trace, curve, "site"), a, b)
    assert (
        changes["b"]["allocated_bytes"] - changes["a"]["allocated_bytes"]
        == changes["appeared"]["bytes"] - changes["gone"]["bytes"]
    )
    assert changes["both_bytes"] + changes["appeared"]["bytes"] == held_at(trace, b)
    for side in ("appeared", "gone"):
        rows = changes[side]["rows"]
        assert sum(row["bytes"] for row in rows) + changes[side]["left_out"]["bytes"] == changes[side]["bytes"]
        assert [row["bytes"] for row in rows] == sorted((row["bytes"] for row in rows), reverse=True)


def test_groups_beyond_the_table_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramscope_server.analysis.timeline.diff.MOST_ROWS", 1)
    trace = from_window(training())
    changes = between(trace, grouping_of(trace, allocation_curve(trace), "site"), -1, 70)["appeared"]
    assert len(changes["rows"]) == 1 == changes["left_out"]["groups"]
    assert changes["rows"][0]["bytes"] + changes["left_out"]["bytes"] == changes["bytes"]


# ---- the ruler, and where to look ----


def test_axis_shows_steps_phases_and_modules() -> None:
    window = random_window(1, 300, modules=240)
    trace = from_window(window)
    whole = ruler(trace, -1, len(trace.events))
    assert {span.lane for span in whole} == {"step", "phase", "module"}
    for lane in ("step", "phase", "module"):
        spans = [span for span in whole if span.lane == lane]
        assert len(spans) <= MOST_SPANS
        assert all(one.end <= two.first for one, two in itertools.pairwise(spans))
    assert {span.name for span in whole if span.lane == "module"} == {"blocks"}
    near = ruler(trace, 100, 130)
    assert all(span.name.count(".") == 2 for span in near if span.lane == "module")
    for span in near:
        if span.lane == "phase":
            assert (trace.events.phase[span.first : span.end] == PHASES.index(span.name)).all()


def test_without_lanes_the_bytes_have_the_whole_height() -> None:
    trace = from_window(training(steps=1, layers=2))
    curve = allocation_curve(trace)
    made = overview(curve, grouping_of(trace, curve, "category"), -1, curve.end)
    figures = [timeline_figure.draw(made, spans) for spans in (AxisSpans(), ruler(trace, -1, curve.end))]
    assert [figure.layout.yaxis.domain for figure in figures] == [(0, 1), (0, 0.83)]
    assert ["yaxis2" in figure.layout for figure in figures] == [False, True]


def test_omitted_axis_spans_are_counted() -> None:
    """Every span is drawn or counted."""
    window = random_window(1, 3000, modules=240)
    trace = from_window(window)
    count = len(trace.events)
    whole = ruler(trace, -1, count)
    for lane, codes in (("step", trace.events.step), ("phase", trace.events.phase)):
        there = sum(1 for code, _ in itertools.groupby(codes.tolist()) if code >= 0)
        drawn = sum(span.lane == lane for span in whole)
        assert drawn + whole.left_out[lane] == there
    assert whole.left_out["phase"] > 1000 > MOST_SPANS
    assert whole.depth == {"module": (1, 3)}
    picture = timeline_figure.draw(
        overview(allocation_curve(trace), grouping_of(trace, allocation_curve(trace), "site"), -1, count), whole
    )
    (seen,) = [
        note.text for note in picture.layout.annotations if note.name == "statement" and "not drawn" in note.text
    ]
    assert f"{whole.left_out['phase']:,} phases" in seen and "too narrow to be seen" in seen
    assert "modules: 1 of 3 levels" in seen
    near = ruler(trace, 100, 130)
    assert not any(near.left_out.values()) and near.depth == {"module": (3, 3)}
    assert timeline_figure.ruler_words(near) == "", "where all is drawn nothing is said"
    one = AxisSpans([], {"step": 1, "phase": 0}, {})
    assert timeline_figure.ruler_words(one) == "not drawn: 1 step too narrow to be seen"


def test_perfetto_export_has_all_spans_and_lists_omissions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step, phase and module at each depth is in the export, and the number of omitted allocations."""

    def written(window: Window) -> tuple[dict[str, Any], list[str], list[dict[str, Any]]]:
        trace = from_window(window)
        answer = json.loads(b"".join(as_perfetto(trace, 0, len(trace.events))))
        labels = [one["args"]["labels"] for one in answer["traceEvents"] if one["name"] == "process_labels"]
        return answer["otherData"], labels, [one for one in answer["traceEvents"] if one["ph"] == "X"]

    window = random_window(1, 3000, modules=240)
    events, modules = from_window(window).events, from_window(window).modules
    about, labels, spans = written(window)

    def stretches(codes: list[Any]) -> list[Any]:
        return [code for code, _ in itertools.groupby(codes) if code is not None]

    known = [modules[code].split(".") if code >= 0 else [] for code in events.module.tolist()]
    for lane, there in (
        ("step", stretches([f"{code:,}" if code >= 0 else None for code in events.step.tolist()])),
        ("phase", stretches([PHASES[code] if code >= 0 else None for code in events.phase.tolist()])),
        *(
            ("module", stretches([".".join(one[:depth]) if len(one) >= depth else None for one in known]))
            for depth in (1, 2, 3)
        ),
    ):
        depth = there[0].count(".")
        drawn = [
            one["name"] for one in spans if one["tid"] == lane and (lane != "module" or one["name"].count(".") == depth)
        ]
        assert drawn == [f"{lane} {name}" for name in there]
        assert lane == "step" or len(there) > MOST_SPANS or not depth
    outer = sorted((one["ts"], -one["dur"]) for one in spans if one["tid"] == "module")
    assert outer == [
        (one["ts"], -one["dur"])
        for one in sorted((one for one in spans if one["tid"] == "module"), key=lambda one: one["ts"])
    ], "of those that begin together the outer one comes first, as a viewer wants it"
    assert labels == [] and "allocations not drawn" not in about
    monkeypatch.setattr(export, "MAX_SLICES", 5)
    about, labels, _ = written(training(2, 1))
    assert about["allocations not drawn"] == about["allocations"] - 5 > 0
    assert labels == [f"allocations not drawn: {about['allocations not drawn']}"]


def test_initial_event_prefers_known_stacks() -> None:
    trace = from_window(training())
    curve = allocation_curve(trace)
    peak = curve.peak(-1, curve.end)
    assert shown_first(curve, None) == shown_first(curve, 0) == peak
    nearly = 0.95 * curve.allocated[peak + 1]
    beyond = int(np.flatnonzero(curve.allocated >= nearly)[-1])  # the moment after the last that is nearly as high
    assert shown_first(curve, beyond) == peak
    twice = replace(curve, allocated=np.concatenate([curve.allocated, curve.allocated]))
    assert twice.peak(-1, twice.end) == peak + len(curve.allocated), (
        "of two that are alike the later, as the advice does"
    )
    assert twice.peak(-1, curve.end) == peak
    for points in (10, 1000):
        assert twice.peak(-1, twice.end) in twice.moments(-1, twice.end, points)
    assert shown_first(twice, beyond) == peak + len(curve.allocated)
    lower = replace(curve, allocated=np.concatenate([curve.allocated, curve.allocated - 1]))
    assert lower.peak(-1, lower.end) == peak
    assert shown_first(lower, beyond) == peak + len(curve.allocated)
    assert stacks_from(trace) == 0
    assert stacks_from(from_window(msgspec.structs.replace(training(), events=without_stacks()))) is None


def without_stacks() -> dict[str, bytes]:
    events = dict(training().events)
    return events | {"stack": np.full(len(events["stack"]) // 8, -1, "<i8").tobytes()}


def test_recording_without_events_shows_its_layout() -> None:
    allocator = Allocator()
    block = allocator.alloc(3 * MIB)
    allocator.events = {name: [] for name in allocator.events}
    trace = from_window(recorded(allocator.layout(), allocator))
    curve = allocation_curve(trace)
    assert (curve.end, curve.allocated.tolist()) == (0, [block.size])
    made = overview(curve, grouping_of(trace, curve, "site"), -1, 0)
    assert made.allocated.tolist() == [block.size]
    grouping = grouping_of(trace, curve, "site")
    drawn: DrawnAllocations = drawn_of(trace, curve, grouping, -1, 0)
    assert len(picture_of(trace, curve, grouping, drawn).event) == 1
    assert flames.flame(trace, sites_of(trace), -1).total_bytes == block.size
    assert describe_event(trace, -1)["step"] is None
    assert not ruler(trace, -1, 0).spans and not any(ruler(trace, -1, 0).left_out.values())
