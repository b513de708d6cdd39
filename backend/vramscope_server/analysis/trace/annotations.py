"""Ranges that the program annotated with ``record_function`` during the recording.

PyTorch annotates some, too: ``Optimizer.step#AdamW.step``, ``Torch-Compiled Region: 0/0``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramscope_server.analysis.array_types import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """One row per range, in the order of their start: events from ``first`` to below ``end``."""

    first: IntArray
    end: IntArray
    depth: IntArray
    """Number of open ranges at its start."""
    name: IntArray
    """Position in trace.words."""

    def __len__(self) -> int:
        return len(self.first)

    def around(self, event: int) -> list[int]:
        """Rows of the ranges around an event, outermost first."""
        rows = np.flatnonzero((self.first <= event) & (self.end > event))
        found: list[int] = rows[np.argsort(self.depth[rows], kind="stable")].tolist()
        return found


def none() -> Annotations:
    """An empty table."""
    return Annotations(*(np.empty(0, np.int64) for _ in range(4)))


def annotations_of(is_end: IntArray, time_ns: IntArray, name: IntArray, event_time_ns: IntArray) -> Annotations:
    """Ranges of events from starts and ends in the order of recording. Empty if events have no times.

    An end belongs to the latest open range of its name, so threads may alternate. A range that started before the recording
    starts with it. A range without an end goes to the last event. 1 µs per row.
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
        else:  # all ranges so far are inside it
            before.append([0, at, -len(before) - 1, word])
    made = np.array([*reversed(before), *rows], np.int64).reshape(-1, 4)
    made[:, 2] += len(before)
    return Annotations(*(made[:, at].copy() for at in range(4)))
