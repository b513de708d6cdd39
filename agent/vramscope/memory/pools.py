"""Which memory pool something belongs to, as a position in the window's list of pools."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final

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
        """Position of each pool."""
        if ids.count(DEFAULT) == len(ids):  # nearly always; a fourth of the time of what follows
            return [0] * len(ids)
        known = self._numbers
        for pool in set(ids).difference(known):
            known[pool] = len(self.ids)
            self.ids.append((int(pool[0]), int(pool[1])))
        return list(map(known.__getitem__, ids))

    def learn(self, segments: Iterable[dict[str, Any]]) -> None:
        """Where the pools' segments lie, for events that do not tell their pool (before torch 2.13)."""
        known = [
            (segment["address"], segment["total_size"], self.numbers([segment.get("segment_pool_id", DEFAULT)])[0])
            for segment in segments
        ]
        ranges = sorted(set(known) | {(s, e - s, n) for s, (e, n) in zip(self._starts, self._ranges, strict=True)})
        self._starts = [start for start, _, _ in ranges]
        self._ranges = [(start + size, number) for start, size, number in ranges]

    def at(self, address: int) -> int:
        """The pool of an address: the default one where there never was another; UNKNOWN where no known segment lies."""
        if len(self.ids) == 1:
            return 0
        place = bisect_right(self._starts, address) - 1
        if place >= 0 and address < self._ranges[place][0]:
            return self._ranges[place][1]
        return UNKNOWN
