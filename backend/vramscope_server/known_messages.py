"""Messages about runs that need not be sent any more, in memory and bounded."""

from __future__ import annotations

from typing import Final

MOST_RUNS: Final = 10_000
"""Maximum number of runs; above it the one that was asked about longest ago is forgotten."""


class KnownMessages:
    """Kinds of messages by run. One thread only."""

    def __init__(self) -> None:
        self._kinds: dict[str, set[str]] = {}
        """The run that was asked about last is at the end."""

    def __len__(self) -> int:
        return len(self._kinds)

    def of(self, run_id: str) -> frozenset[str]:
        """Kinds that need no message any more."""
        kinds = self._kinds.pop(run_id, None)
        if kinds is None:
            return frozenset()
        self._kinds[run_id] = kinds
        return frozenset(kinds)

    def add(self, run_id: str, *kinds: str) -> None:
        """Note that these need none. Runs without any take no memory."""
        if kinds:
            self._kinds[run_id] = self._kinds.pop(run_id, set()) | {*kinds}
        while len(self._kinds) > MOST_RUNS:
            del self._kinds[next(iter(self._kinds))]
