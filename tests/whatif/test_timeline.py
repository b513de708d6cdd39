"""The timeline of real histories: what the allocator itself counted, at its peak and at any moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.timeline.curve import allocation_curve
from vramscope_server.analysis.timeline.flamegraph import flame
from vramscope_server.analysis.timeline.grouping import BYS, grouping_of
from vramscope_server.analysis.timeline.overview import overview
from vramscope_server.analysis.timeline.source_lines import sites_of
from vramscope_server.analysis.trace.trace import layout_at

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["lengths", "evaluation", "late", "ring", "died"])
def test_the_stack_is_what_the_allocator_holds_in_every_bucket(recorded: dict[str, Any], kind: str) -> None:
    """Whole histories, late ones and overwritten ones, other streams and a death by memory: to the byte."""
    trace = read(recorded[kind].path).devices[0]
    curve = allocation_curve(trace)
    if kind != "ring":  # of which the beginning, and with it perhaps the peak, was overwritten
        assert curve.allocated.max() == recorded[kind].counted["peak_allocated_bytes"]
    assert curve.allocated[-1] == trace.end.allocated_bytes
    for by in BYS:
        made = overview(curve, grouping_of(trace, curve, by), -1, curve.end, 60)
        assert np.array_equal(made.held_bytes.sum(axis=0), made.allocated)
        assert made.allocated.max() == curve.allocated.max()
    for moment, allocated in zip(made.moment.tolist(), made.allocated.tolist(), strict=True):
        assert layout_at(trace, moment).allocated_bytes == allocated


def test_who_holds_the_peak_is_named_by_the_users_own_lines(recorded: dict[str, Any]) -> None:
    trace = read(recorded["lengths"].path).devices[0]
    made = flame(trace, sites_of(trace), allocation_curve(trace).peak(-1, len(trace.events)))
    assert made.total_bytes == recorded["lengths"].counted["peak_allocated_bytes"]
    own = [box for box in made.boxes if box.kind == "own"]
    assert any(box.name.startswith("forward trainings.py:") for box in own)
    assert not any("site-packages" in box.detail for box in own)
