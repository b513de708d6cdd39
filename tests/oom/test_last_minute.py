"""The figure of the last minute ends at the error with the values at the error."""

from __future__ import annotations

from typing import Any

import numpy as np

from vramscope.protocol.series import UNKNOWN
from vramscope_server.figures import last_minute

SECOND = 1_000_000_000
GIB = 1 << 30


def drawn(samples: dict[str, list[int]], **fields: Any) -> dict[str, Any]:
    """Traces by label."""
    at_error = {"allocated_bytes": 3 * GIB, "reserved_bytes": 4 * GIB, "device_used_bytes": None, **fields}
    figure = last_minute.draw(
        {name: np.array(values, "<i8").tobytes() for name, values in samples.items()},
        100 * SECOND,
        at_error=at_error,
        asked_bytes=GIB,
        capacity_bytes=8 * GIB,
    )
    return {trace.name: trace for trace in figure.data}


def test_the_lines_end_at_the_error() -> None:
    """All memory may be allocated between two samples. A sample during the recording is not one before the error."""
    traces = drawn(
        {
            "time_ns": [98 * SECOND, 99 * SECOND, 101 * SECOND],
            "allocated_bytes": [GIB, GIB, 2 * GIB],
            "reserved_bytes": [GIB, 2 * GIB, 7 * GIB],
            "device_used_bytes": [UNKNOWN, 3 * GIB, 7 * GIB],
        }
    )
    assert list(traces["allocated"].x) == [-2, -1, 0]
    assert list(traces["allocated"].y) == [1, 1, 3]
    assert list(traces["reserved"].y) == [1, 2, 4]
    assert list(traces["requested"].y) == [4, 5], "on top of what was reserved"
    assert np.isnan(traces["device in use"].y[[0, 2]].astype(float)).all() and traces["device in use"].y[1] == 3


def test_without_a_sample_there_is_no_line() -> None:
    assert drawn({}) == {}
