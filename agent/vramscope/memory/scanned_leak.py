"""Result of one scan of the leak detector for one finding, for the recorder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ScannedLeak(NamedTuple):
    """One finding in one scan."""

    kind: str
    name: str
    file: str | None
    line: int | None
    addresses: Sequence[int]
    """Storages that the fix frees."""
    counted_bytes: int
    """Further bytes that the fix frees, extrapolated; their addresses are unknown."""
