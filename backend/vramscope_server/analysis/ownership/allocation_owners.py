"""Owners of allocations: the agent's records at step boundaries, matched by address and lifetime."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.address_lookup import allocation_at
from vramscope_server.analysis.trace.trace import Trace

Codes = npt.NDArray[np.int8]

NOBODY: Final = -1


class Ownership(NamedTuple):
    """One row per allocation of the trace."""

    category: Codes
    """Position in window.OWNER_CATEGORIES, from_window.UNKNOWN_CATEGORY, or NOBODY."""
    name: IntArray
    """Position in ``trace.owner_names``, or NOBODY."""


def ownership_of(trace: Trace) -> Ownership:
    """Owner of each allocation: the address belongs to the allocation that existed there when it was recorded.

    An allocation with two owners (a gradient that is also a buffer) gets the one that comes first in OWNER_CATEGORIES.
    O(lives log lives).
    """
    lives, owners = trace.lives, trace.owners
    category = np.full(len(lives), NOBODY, np.int8)
    name = np.full(len(lives), NOBODY, np.int64)
    if not owners or not len(lives):
        return Ownership(category, name)
    life = allocation_at(trace, owners["address"], owners["event"])
    there = life >= 0
    codes = owners["category"]
    there &= codes >= 0
    rows = np.flatnonzero(there)[::-1]  # the first of several names
    rows = rows[np.argsort(-codes[rows], kind="stable")]  # the first category is written last
    category[life[rows]] = codes[rows]
    name[life[rows]] = owners["name"][rows]
    return Ownership(category, name)


def name_of(trace: Trace, of: Ownership, life: int) -> str | None:
    """Owner's name, such as ``gradient of transformer.h.3.mlp.c_fc.weight``; None if unknown."""
    at = int(of.name[life])
    return trace.owner_names[at] if 0 <= at < len(trace.owner_names) else None
