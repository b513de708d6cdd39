"""Addresses of leaked memory in a window: the link from a finding to its allocations.

A scan at a step's boundary reports which storages each known leak retains and its fix would free. A walk before each
backward reports which storages that backward needs, so that no fix is said to free them earlier. Addresses are stored,
never tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from vramscope.memory.scanned_leak import ScannedLeak
from vramscope.protocol.series import UNKNOWN
from vramscope.protocol.window import Columns, Holding

MAX_ADDRESSES: Final = 100_000
"""Maximum number of addresses in one window."""


class LeakedAddresses:
    """Leaked addresses of one window. For the training thread, except for :meth:`columns`."""

    def __init__(self) -> None:
        self._scans: list[int] = []
        self._holdings: dict[tuple[str, str, str | None, int | None], list[int]] = {}
        """Leak -> bytes, one per scan; UNKNOWN before it was found."""
        self._marks, self._addresses, self._holding_numbers = array("q"), array("q"), array("q")

    def scan(self, mark: int, leaks: Iterable[ScannedLeak]) -> None:
        """Record what all known leaks retain at a mark."""
        self._scans.append(mark)
        for leak in leaks:
            known_bytes = self._holdings.setdefault(leak[:4], [])
            known_bytes += [UNKNOWN] * (len(self._scans) - len(known_bytes))
            known_bytes[-1] = leak.counted_bytes
            self._note(mark, leak.addresses, list(self._holdings).index(leak[:4]))

    def needed(self, mark: int, addresses: Iterable[int]) -> None:
        """Record the addresses that a backward pass needs, which begins at a mark."""
        self._note(mark, addresses, UNKNOWN)

    @property
    def spans_a_step(self) -> bool:
        """True if two scans saw some leak."""
        return any(sum(leaks != UNKNOWN for leaks in known_bytes) > 1 for known_bytes in self._holdings.values())

    def _note(self, mark: int, addresses: Iterable[int], holding_number: int) -> None:
        for address in addresses:
            if len(self._marks) >= MAX_ADDRESSES:
                return
            self._marks.append(mark)
            self._addresses.append(address)
            self._holding_numbers.append(holding_number)

    def columns(self, bounds: Sequence[int]) -> tuple[Columns, list[Holding], list[int]]:
        """Return columns of window.HELD, Window.holdings and Window.scans. ``bounds``: each mark's first event, and the
        end."""
        last = len(bounds) - 1
        events = array("q", (bounds[min(mark, last)] for mark in self._marks))
        columns = {"event": events, "address": self._addresses, "holding": self._holding_numbers}
        holdings = [
            Holding(
                kind=kind,
                name=name,
                file=file,
                line=line,
                counted_bytes=[*known_bytes, *[UNKNOWN] * (len(self._scans) - len(known_bytes))],
            )
            for (kind, name, file, line), known_bytes in self._holdings.items()
        ]
        scans = [bounds[min(mark, last)] for mark in self._scans]
        return {name: column.tobytes() for name, column in columns.items()} if self._marks else {}, holdings, scans
