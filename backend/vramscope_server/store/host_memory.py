"""Parts of a rank's host memory, from the sample in which they were largest together."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from vramscope.protocol import series
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.answers.run_detail import HostMemory

_PARTS = ("process_anonymous_bytes", "child_processes_bytes", "shared_memory_bytes")


class HighestHostMemory(msgspec.Struct):
    """The parts of one sample. ``used_bytes`` is the memory in use on the host then; None is unknown."""

    process_bytes: int
    children_bytes: int
    shared_bytes: int
    children: int | None = None
    largest_child_bytes: int | None = None
    used_bytes: int | None = None

    @property
    def answer(self) -> HostMemory:
        """The parts as the API has them. Other memory is not known better than by the difference."""
        known = self.process_bytes + self.children_bytes + self.shared_bytes
        return HostMemory(
            process_anonymous_bytes=self.process_bytes,
            child_processes_bytes=self.children_bytes,
            child_processes=self.children,
            largest_child_bytes=self.largest_child_bytes,
            shared_memory_bytes=self.shared_bytes,
            host_used_bytes=self.used_bytes,
            other_bytes=None if self.used_bytes is None else max(0, self.used_bytes - known),
        )


def higher(before: HighestHostMemory | None, columns: Mapping[str, IntArray]) -> HighestHostMemory | None:
    """Return the parts of the row with the largest sum, if it exceeds that of before. Rows with an unknown part are left out."""
    if any(name not in columns for name in _PARTS):
        return before
    parts = np.stack([columns[name] for name in _PARTS])
    sums = np.where((parts != series.UNKNOWN).all(axis=0), parts.sum(axis=0), series.UNKNOWN)
    at = int(sums.argmax())
    highest = -1 if before is None else before.process_bytes + before.children_bytes + before.shared_bytes
    if int(sums[at]) <= highest:
        return before
    process, children, shared = (int(part) for part in parts[:, at])
    return HighestHostMemory(
        process,
        children,
        shared,
        children=_known(columns, "child_processes", at),
        largest_child_bytes=_known(columns, "largest_child_bytes", at),
        used_bytes=_known(columns, "host_used_bytes", at),
    )


def _known(columns: Mapping[str, IntArray], name: str, at: int) -> int | None:
    return int(columns[name][at]) if name in columns and columns[name][at] != series.UNKNOWN else None
