"""Which allocations the program had a name for: what the agent saw at the boundaries of steps, matched by address and life."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import OWNER_CATEGORIES
from vramscope_server.analysis.trace.address_lookup import seen_at
from vramscope_server.analysis.trace.trace import Trace

Whole = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]

NOBODY: Final = -1


class Ownership(NamedTuple):
    """One row a life of the trace."""

    category: Codes
    """position in window.OWNER_CATEGORIES; NOBODY"""
    name: Whole
    """position in ``trace.owner_names``; NOBODY"""


def ownership_of(trace: Trace) -> Ownership:
    """Each address belongs to the life that lay there when it was seen. O(lives log lives).

    What is owned twice (a gradient that is a buffer, too) is what comes first in OWNER_CATEGORIES.
    """
    lives, owners = trace.lives, trace.owners
    category = np.full(len(lives), NOBODY, np.int8)
    name = np.full(len(lives), NOBODY, np.int64)
    if not owners or not len(lives):
        return Ownership(category, name)
    life = seen_at(trace, owners["address"], owners["event"])
    there = life >= 0
    codes = owners["category"]
    there &= (codes >= 0) & (codes < len(OWNER_CATEGORIES))
    rows = np.flatnonzero(there)[::-1]  # of several names the first
    rows = rows[np.argsort(-codes[rows], kind="stable")]  # what comes first is written last
    category[life[rows]] = codes[rows]
    name[life[rows]] = owners["name"][rows]
    return Ownership(category, name)


def name_of(trace: Trace, of: Ownership, life: int) -> str | None:
    """``gradient of transformer.h.3.mlp.c_fc.weight``; None where nobody had a name for it."""
    at = int(of.name[life])
    return trace.owner_names[at] if 0 <= at < len(trace.owner_names) else None
