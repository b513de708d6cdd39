"""What leaks hold, noted while a window is recorded: the link from a finding to its allocations.

A look at a step's boundary says which storages each known leak keeps and its fix would let go; a walk before each backward says
which storages that backward needs, so that no fix is promised to free them earlier. Addresses are noted, never a tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from vramscope.protocol.series import UNKNOWN
from vramscope.protocol.window import Columns, Holding

MOST_HELD: Final = 100_000
"""addresses of one window"""


class ScannedLeak(NamedTuple):
    """One leak in one look."""

    kind: str
    name: str
    file: str | None
    line: int | None
    addresses: Sequence[int]
    """of what the fix lets go"""
    counted_bytes: int
    """beside these, counted from their like"""


class LeakedAddresses:
    """Of one window. On the training thread, but for :meth:`columns`."""

    def __init__(self) -> None:
        self._looks: list[int] = []
        self._holdings: dict[tuple[str, str, str | None, int | None], list[int]] = {}
        """leak -> bytes, one a look; UNKNOWN before it was found"""
        self._marks, self._addresses, self._of = array("q"), array("q"), array("q")

    def scan(self, mark: int, seen: Iterable[ScannedLeak]) -> None:
        """What all known leaks hold when the mark is made."""
        self._looks.append(mark)
        for leak in seen:
            held = self._holdings.setdefault(leak[:4], [])
            held += [UNKNOWN] * (len(self._looks) - len(held))
            held[-1] = leak.counted_bytes
            self._note(mark, leak.addresses, list(self._holdings).index(leak[:4]))

    def needed(self, mark: int, addresses: Iterable[int]) -> None:
        """Saved for a backward that begins when the mark is made."""
        self._note(mark, addresses, UNKNOWN)

    @property
    def spans_a_step(self) -> bool:
        """Two looks have seen what some leak holds."""
        return any(sum(seen != UNKNOWN for seen in held) > 1 for held in self._holdings.values())

    def _note(self, mark: int, addresses: Iterable[int], of: int) -> None:
        for address in addresses:
            if len(self._marks) >= MOST_HELD:
                return
            self._marks.append(mark)
            self._addresses.append(address)
            self._of.append(of)

    def columns(self, bounds: Sequence[int]) -> tuple[Columns, list[Holding], list[int]]:
        """(columns of window.HELD, Window.holdings, Window.looks); ``bounds``: the first event behind each mark, and the end."""
        last = len(bounds) - 1
        events = array("q", (bounds[min(mark, last)] for mark in self._marks))
        columns = {"event": events, "address": self._addresses, "holding": self._of}
        holdings = [
            Holding(
                kind=kind,
                name=name,
                file=file,
                line=line,
                counted_bytes=[*held, *[UNKNOWN] * (len(self._looks) - len(held))],
            )
            for (kind, name, file, line), held in self._holdings.items()
        ]
        scans = [bounds[min(mark, last)] for mark in self._looks]
        return {name: column.tobytes() for name, column in columns.items()} if self._marks else {}, holdings, scans
