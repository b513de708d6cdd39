"""Compares two moments of a trace: allocations that exist at only one of them, by group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypedDict

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.timeline.curve import EventMoment, alive, describe_event
from vramscope_server.analysis.timeline.grouping import Grouping

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

MOST_ROWS: Final = 200


class PointInTime(EventMoment):
    """One of the two moments."""

    allocated_bytes: int
    allocations: int


class GroupedAllocations(TypedDict):
    """Allocations of one group."""

    name: str
    bytes: int
    allocations: int
    largest_bytes: int
    first: int
    """Row of trace.lives of one of them."""


class OtherGroups(TypedDict):
    """Groups that are left out."""

    groups: int
    bytes: int


class OneSided(TypedDict):
    """Allocations that are alive at one of the moments only."""

    bytes: int
    allocations: int
    rows: list[GroupedAllocations]
    left_out: OtherGroups


class BetweenMoments(TypedDict):
    """Comparison of two moments."""

    a: PointInTime
    b: PointInTime
    appeared: OneSided
    gone: OneSided
    both_bytes: int


def between(trace: Trace, grouping: Grouping, a: int, b: int) -> BetweenMoments:
    """Compare moment ``b`` with moment ``a``. Takes 10 ns for each row of trace.lives.

    ``allocated(b) - allocated(a)`` equals the bytes in ``appeared`` minus the bytes in ``gone``.
    """
    at_a, at_b = alive(trace, a), alive(trace, b)
    size = trace.lives.size_bytes

    def moment(event: int, rows: IntArray) -> PointInTime:
        return {
            **describe_event(trace, event),
            "allocated_bytes": int(size[rows].sum()),
            "allocations": len(rows),
        }

    return {
        "a": moment(a, at_a),
        "b": moment(b, at_b),
        "appeared": _grouped(trace, grouping, np.setdiff1d(at_b, at_a, assume_unique=True)),
        "gone": _grouped(trace, grouping, np.setdiff1d(at_a, at_b, assume_unique=True)),
        "both_bytes": int(size[np.intersect1d(at_a, at_b, assume_unique=True)].sum()),
    }


def _grouped(trace: Trace, grouping: Grouping, rows: IntArray) -> OneSided:
    size = trace.lives.size_bytes[rows]
    groups, of_row = np.unique(grouping.group[rows], return_inverse=True)
    of_row = of_row.reshape(-1)
    count = np.bincount(of_row, minlength=len(groups))
    held = np.zeros(len(groups), np.int64)
    np.add.at(held, of_row, size)
    largest = np.zeros(len(groups), np.int64)
    np.maximum.at(largest, of_row, size)
    example = np.zeros(len(groups), np.int64)
    example[of_row[::-1]] = rows[::-1]
    order = np.lexsort((groups, -held))
    shown = order[:MOST_ROWS]
    return {
        "bytes": int(size.sum()),
        "allocations": len(rows),
        "rows": [
            {
                "name": grouping.names[int(groups[at])],
                "bytes": int(held[at]),
                "allocations": int(count[at]),
                "largest_bytes": int(largest[at]),
                "first": int(example[at]),
            }
            for at in shown
        ],
        "left_out": {"groups": len(order) - len(shown), "bytes": int(held[order[MOST_ROWS:]].sum())},
    }
