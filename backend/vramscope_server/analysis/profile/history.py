"""Allocated bytes of each row of a profile's tables after each allocation and free. They add up to the allocator's total.

Two groups are in no row: memory from before the profile, and memory that is not attributed, the rest to the allocator's total.
If a change has no total (frees by Python itself), the last total and the change are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vramscope.protocol.profile import HISTORY, NOT_ATTRIBUTED, Profile
from vramscope.protocol.series import UNKNOWN
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.profile.tables import Table
from vramscope_server.analysis.timeline.curve import AllocationCurve
from vramscope_server.analysis.timeline.grouping import MOST_SERIES, Grouping, cut_to

BEFORE: Final = "before the profile"


@dataclass(frozen=True, eq=False)
class ProfileHistory:
    """Memory of a profile after each change."""

    curve: AllocationCurve
    grouping: Grouping
    """Names of one table's rows, and the two other groups."""


def history_of(profile: Profile, table: str) -> ProfileHistory | None:
    """Memory history of a table's rows; None if the profile has none."""
    columns = {name: np.frombuffer(profile.history.get(name, b""), "<i8") for name in HISTORY}
    change, row, rows = columns["change_bytes"], columns[table], Table.of(profile, table)
    count = len(change)
    if not count or profile.start_bytes is None or not len(rows):
        return None
    allocated = _allocated(change, columns["total_bytes"], profile.start_bytes)
    names, group_of = _named(rows)
    of_row = np.where(row >= 0, group_of[np.maximum(row, 0)], -1)
    known = of_row >= 0
    in_rows = np.cumsum(np.where(known, change, 0))
    freed = np.cumsum(np.where(row < 0, change, 0))
    # Memory that is freed without a row is assumed to be from before the profile, so this value never rises.
    before = np.minimum.accumulate(np.clip(np.minimum(profile.start_bytes + freed, allocated - in_rows), 0, None))
    # The largest group is lowest; the two groups without rows are below and above all others.
    order = _by_size(of_row[known], change[known], len(names), int(np.count_nonzero(known[: allocated.argmax() + 1])))
    position = np.empty(len(names), np.int64)
    position[order] = 1 + np.arange(len(names))
    last = len(names) + 1
    moves = [
        (np.flatnonzero(known), position[of_row[known]], change[known]),
        (np.arange(count), np.zeros(count, np.int64), np.diff(before, prepend=profile.start_bytes)),
        (np.arange(count), np.full(count, last), np.diff(allocated - in_rows - before, prepend=0)),
    ]
    event, group, by = (np.concatenate([part[at] for part in moves]) for at in range(3))
    kept = np.flatnonzero(by)
    kept = kept[np.argsort(event[kept], kind="stable")]
    curve = AllocationCurve(
        event=event[kept],
        row=group[kept].astype(np.int32),
        change_bytes=by[kept],
        there=np.zeros(1, np.int64),
        there_bytes=np.array([profile.start_bytes]),
        allocated=np.concatenate([[profile.start_bytes], allocated]),
        reserved=np.zeros(count + 1, np.int64),
    )
    grouping = Grouping(
        by=table,
        names=[BEFORE, *(names[at] for at in order), NOT_ATTRIBUTED],
        group=np.arange(last + 1, dtype=np.int32),
        rank=np.array([-1, *range(len(names)), -1]),
    )
    return ProfileHistory(curve, grouping)


def _allocated(change: IntArray, totals: IntArray, start: int) -> IntArray:
    """Allocated bytes after each change."""
    run = np.cumsum(change)
    known_at = np.where(totals != UNKNOWN, np.arange(len(totals)), -1)
    last = np.maximum.accumulate(known_at)
    return run + np.where(last >= 0, totals[last] - run[last], start)


def _named(table: Table) -> tuple[list[str], IntArray]:
    """Names, and the position of each row's name; -1 if not attributed. Rows per phase or function share a name.

    Modules are cut to the depth that fits into the number of series.
    """
    texts = table.names
    if table.name == "modules":
        names, cut = cut_to(texts, MOST_SERIES)
        texts = [names[at] for at in cut.tolist()]
    if table.name == "lines":
        files, lines = table.texts("file"), table.columns["line"].tolist()
        texts = [
            name if table.special[row] else f"{files[row].rsplit('/', 1)[-1]}:{lines[row]}"
            for row, name in enumerate(texts)
        ]
    positions = {
        name: position for position, name in enumerate(dict.fromkeys(name for name in texts if name != NOT_ATTRIBUTED))
    }
    return list(positions), np.array([positions.get(name, -1) for name in texts], np.int64)


def _by_size(group: IntArray, change: IntArray, count: int, to_peak: int) -> IntArray:
    """Groups sorted by their bytes at the peak, after ``to_peak`` changes, then by all bytes they allocate."""
    at_peak = np.bincount(group[:to_peak], change[:to_peak], count)
    in_all = np.bincount(group, np.maximum(change, 0), count)
    return np.lexsort((-in_all, -at_peak))
