"""Verdict of one scan on one holder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final, NamedTuple

from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.holders.key import HolderKey
from vramscope.leaks.verdict.advice import Advice
from vramscope.leaks.verdict.states import Reason, Transition

GROWS: Final = ("growing", "growing-eval", "tensor-growth")
OF_EVALUATIONS: Final = ("growing-eval", "no_grad-missing")
"""Graphs of an evaluation, which no backward pass uses."""


class FindingKey(NamedTuple):
    """Identity of a finding within a session."""

    kind: str
    """One of series.LEAK_KINDS."""
    holder: HolderKey


@dataclasses.dataclass
class HolderVerdict:
    """A holder that is a leak."""

    kind: str
    group: HeldMemory
    count: int
    age: int | None
    growth: float | None
    """Bytes per iteration."""
    advice: Advice
    exclusive_bytes: int = 0
    """Bytes that no other known holder retains."""
    per: str = "step"
    """Unit of ``age`` and ``growth``."""
    waits: Reason | None = None
    """Why it is not reported yet: the container may be emptied, or may fill up. None where it is reported."""
    keys_recur: bool = False
    """True for a cache by key that got fewer keys than there were iterations, so that some came again, or ever fewer keys."""
    at_once: float = 0
    """Tensors that a container by key gets with each new key; 0 if it gets no new keys."""
    emptied_after: int | None = None
    """Iterations from one emptying to the next; None if none was seen."""
    speaks_for: frozenset[FindingKey] = frozenset()
    """Findings that this one replaces."""
    reason: Reason = Reason.FIRST_SEEN
    """Rule that found it."""
    why: Sequence[Transition] = ()
    """States of the holder up to this scan."""
