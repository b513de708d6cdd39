"""What the rows of a profile's tables held after each of its allocations and frees: together what the allocator had allocated.

Two groups are in no row: what was there before the profile, and what is not attributed, which is the rest to the allocator's own
count. Where the allocator tells no count (of what Python lets go by itself) it is the last one and the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.profile import HISTORY, NOT_ATTRIBUTED, Profile
from vramscope.protocol.series import UNKNOWN
from vramscope_server.analysis.profile.tables import Table
from vramscope_server.analysis.timeline.curve import Course
from vramscope_server.analysis.timeline.grouping import MOST_SERIES, Grouping, cut_to

Whole = npt.NDArray[np.int64]
BEFORE: Final = "before the profile"


@dataclass(frozen=True, eq=False)
class ProfileHistory:
    """The window change by change."""

    course: Course
    grouping: Grouping
    """the names of one table's rows, and the two groups beside them"""


def history_of(profile: Profile, table: str) -> ProfileHistory | None:
    """What the rows of a table held; None where the profile does not tell it."""
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
    gone = np.cumsum(np.where(row < 0, change, 0))
    # (What was let go unseen is taken to have been there before, and does not come again.)
    before = np.minimum.accumulate(np.clip(np.minimum(profile.start_bytes + gone, allocated - in_rows), 0, None))
    # The largest lies lowest; what is in no row below and above all.
    order = _by_size(of_row[known], change[known], len(names), int(np.count_nonzero(known[: allocated.argmax() + 1])))
    place = np.empty(len(names), np.int64)
    place[order] = 1 + np.arange(len(names))
    last = len(names) + 1
    moves = [
        (np.flatnonzero(known), place[of_row[known]], change[known]),
        (np.arange(count), np.zeros(count, np.int64), np.diff(before, prepend=profile.start_bytes)),
        (np.arange(count), np.full(count, last), np.diff(allocated - in_rows - before, prepend=0)),
    ]
    event, group, by = (np.concatenate([part[at] for part in moves]) for at in range(3))
    kept = np.flatnonzero(by)
    kept = kept[np.argsort(event[kept], kind="stable")]
    course = Course(
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
    return ProfileHistory(course, grouping)


def _allocated(change: Whole, told: Whole, start: int) -> Whole:
    """Allocated after each change."""
    run = np.cumsum(change)
    told_at = np.where(told != UNKNOWN, np.arange(len(told)), -1)
    last = np.maximum.accumulate(told_at)
    return run + np.where(last >= 0, told[last] - run[last], start)


def _named(table: Table) -> tuple[list[str], Whole]:
    """(names, which of them each row has; -1: not attributed): an operation has a row a phase, a line one a function.

    Modules are cut to the depth at which they can still be told apart.
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
    places = {name: place for place, name in enumerate(dict.fromkeys(name for name in texts if name != NOT_ATTRIBUTED))}
    return list(places), np.array([places.get(name, -1) for name in texts], np.int64)


def _by_size(group: Whole, change: Whole, count: int, to_peak: int) -> Whole:
    """Groups by what they hold at the peak, which is after so many changes, then by what they ever allocate."""
    held = np.bincount(group[:to_peak], change[:to_peak], count)
    ever = np.bincount(group, np.maximum(change, 0), count)
    return np.lexsort((-ever, -held))
