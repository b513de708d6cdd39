"""Stretches that a program named itself: what ``record_function`` told while the history was recorded.

PyTorch names some, too: ``Optimizer.step#AdamW.step``, ``Torch-Compiled Region: 0/0``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """One row a stretch, in the order in which they began: events ``first`` up to, and not including, ``end``."""

    first: Whole
    end: Whole
    depth: Whole
    """how many others were open when it began"""
    name: Whole
    """position in trace.words"""

    def __len__(self) -> int:
        return len(self.first)

    def around(self, event: int) -> list[int]:
        """The rows that hold an event, outermost first."""
        rows = np.flatnonzero((self.first <= event) & (self.end > event))
        found: list[int] = rows[np.argsort(self.depth[rows], kind="stable")].tolist()
        return found


def none() -> Annotations:
    """No stretches."""
    return Annotations(*(np.empty(0, np.int64) for _ in range(4)))


def annotations_of(is_end: Whole, time_ns: Whole, name: Whole, event_time_ns: Whole) -> Annotations:
    """Beginnings and ends, in the order in which they were told, as stretches of events; where events have no times, none.

    An end belongs to the latest of its name that is open, so that threads may tell theirs in turn. What began before the
    history begins with it; what did not end goes to its last event. 1 µs a row.
    """
    count = len(event_time_ns)
    if not count or int(event_time_ns.min()) < 0:
        return none()
    moment = np.searchsorted(np.maximum.accumulate(event_time_ns), time_ns, side="left").tolist()
    rows: list[list[int]] = []
    before: list[list[int]] = []
    open_of: dict[int, list[list[int]]] = {}
    open_now = 0
    for ends, at, word in zip(is_end.tolist(), moment, name.tolist(), strict=True):
        waiting = open_of.setdefault(word, [])
        if not ends:
            row = [at, count, open_now - len(before), word]
            rows.append(row)
            waiting.append(row)
            open_now += 1
        elif waiting:
            waiting.pop()[1] = at
            open_now -= 1
        else:  # all that was told so far lay in it
            before.append([0, at, -len(before) - 1, word])
    made = np.array([*reversed(before), *rows], np.int64).reshape(-1, 4)
    made[:, 2] += len(before)
    return Annotations(*(made[:, at].copy() for at in range(4)))
