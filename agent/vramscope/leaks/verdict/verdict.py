"""What a look says of one holder."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.holders.key import HolderKey

GROWS: Final = ("growing", "growing-eval", "tensor-growth")
OVERLAPS: Final = ("overlap", "overlap-unfreed")


class FindingKey(NamedTuple):
    """Identity of a finding within a session."""

    kind: str
    """One of series.LEAK_KINDS."""
    holder: HolderKey


@dataclasses.dataclass
class Verdict:
    """A holder that is a leak."""

    kind: str
    group: Group
    count: int
    age: int | None
    growth: float | None
    """bytes a step"""
    advice: str
    freed_bytes: int
    """that the advice lets go"""
    exclusive_bytes: int = 0
    """that no other holder seen keeps alive"""
    per: str = "step"
    """what ``age`` and ``growth`` are counted in"""
    waits: bool = False
    """it may be emptied yet, and is not to be told before"""
    emptied_after: int | None = None
    """rounds that it fills for until it is emptied; None: it was not seen to be"""
    speaks_for: frozenset[FindingKey] = frozenset()
    """kind and holder's key of what was, or may have been, told of by itself and follows from this one"""
