"""From the size that is asked for to the size of the block."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import entry

MIN_BYTES: Final = 512
"""Smallest block size. All sizes are multiples of it."""


@entry
def rounded(requested_bytes: int, divisions: Any) -> Any:
    """A request as the allocator rounds it: to whole 512 B, or to a step between two powers of two where that is set.

    divisions   16 numbers, for requests below 2 MiB, of 2 to 4 MiB ... of 32 GiB and more (roundup_power2_divisions)
    """
    if requested_bytes < MIN_BYTES:
        return MIN_BYTES
    power = 0
    while requested_bytes >> (power + 1):
        power += 1
    parts = divisions[min(max(power - 20, 0), 15)]
    step = np.int64(MIN_BYTES)
    if parts > 1 and requested_bytes > MIN_BYTES * parts:
        step = (np.int64(1) << power) // parts
    return (requested_bytes + step - 1) // step * step
