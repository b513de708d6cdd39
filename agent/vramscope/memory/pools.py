"""Memory pools of addresses and events, as positions in the window's list of pools."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

from vramscope.memory.pytorch_snapshot import SnapshotSegment
from vramscope.protocol.series import UNKNOWN

DEFAULT: Final = (0, 0)


class Pools:
    """PyTorch's pool ids, each once; the default pool comes first."""

    def __init__(self) -> None:
        self.ids: list[tuple[int, int]] = [DEFAULT]
        self._numbers: dict[tuple[int, int], int] = {DEFAULT: 0}
        self._starts: list[int] = []
        self._ranges: list[tuple[int, int]] = []

    def numbers(self, ids: list[Any]) -> list[int]:
        """Return the position of each pool."""
        if ids.count(DEFAULT) == len(ids):  # the usual case, in a fourth of the time of the code below
            return [0] * len(ids)
        known = self._numbers
        for pool in set(ids).difference(known):
            known[pool] = len(self.ids)
            self.ids.append((int(pool[0]), int(pool[1])))
        return list(map(known.__getitem__, ids))

    def learn(self, segments: Iterable[SnapshotSegment]) -> None:
        """Record the addresses of the pools' segments, for events without a pool (before torch 2.13)."""
        known = [
            (segment["address"], segment["total_size"], self.numbers([segment.get("segment_pool_id", DEFAULT)])[0])
            for segment in segments
        ]
        ranges = sorted(set(known) | {(s, e - s, n) for s, (e, n) in zip(self._starts, self._ranges, strict=True)})
        self._starts = [start for start, _, _ in ranges]
        self._ranges = [(start + size, number) for start, size, number in ranges]

    def at(self, address: int) -> int:
        """Return the pool of an address: the default one if there was no other; UNKNOWN outside of known segments."""
        if len(self.ids) == 1:
            return 0
        position = bisect_right(self._starts, address) - 1
        if position >= 0 and address < self._ranges[position][0]:
            return self._ranges[position][1]
        return UNKNOWN
