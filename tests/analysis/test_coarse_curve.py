"""The coarse curve of a snapshot, beside the exact one that is computed from lifetimes."""

from __future__ import annotations

import pickle
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "backend"))

from snapshot_maker import MIB, snapshot_of

from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.timeline.coarse_curve import coarse_curve
from vramscope_server.analysis.timeline.curve import allocation_curve


def trace_of(contents: dict[str, Any]) -> Any:
    return read(pickle.dumps(contents)).devices[0]


@pytest.mark.parametrize("points", [1, 7, 50, 10_000])
def test_each_stretch_has_its_highest_values(points: int) -> None:
    """These blocks have no rounding, so that requested equals allocated."""
    trace = trace_of(snapshot_of(40))
    curve = coarse_curve(trace, points)
    exact = allocation_curve(trace)
    assert curve is not None
    assert curve.events == len(trace.events)
    assert len(curve.event) == min(points, curve.events)
    stretches = list(pairwise([*curve.event, curve.events]))
    assert curve.requested_bytes == [int(exact.allocated[a + 1 : b + 1].max()) for a, b in stretches]
    assert curve.reserved_bytes == [int(exact.reserved[a + 1 : b + 1].max()) for a, b in stretches]


def test_memory_from_before_the_first_event_is_included() -> None:
    contents = snapshot_of(40)
    contents["device_traces"][0] = contents["device_traces"][0][-10:]
    curve = coarse_curve(trace_of(contents))
    assert curve is not None
    assert curve.requested_bytes is not None
    assert curve.requested_bytes[-1] == 20 * MIB


def test_without_events_there_is_none() -> None:
    contents = snapshot_of(4)
    contents["device_traces"] = [[]]
    assert coarse_curve(trace_of(contents)) is None


def test_missing_events_leave_the_curve_unknown() -> None:
    """A free without its allocation would lead to less than nothing."""
    contents = snapshot_of(4)
    contents["device_traces"][0] = [one for one in contents["device_traces"][0] if one["action"] != "free_requested"]
    for segment in contents["segments"]:
        for block in segment["blocks"]:
            block["state"] = "inactive"
    curve = coarse_curve(trace_of(contents))
    assert curve is not None
    assert curve.requested_bytes is None
    assert curve.reserved_bytes is not None
