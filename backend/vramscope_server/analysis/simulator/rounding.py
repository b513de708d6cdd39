"""Rounds the size of a request to the size of its block."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import entry

MIN_BYTES: Final = 512
"""Smallest block size. All sizes are multiples of it."""


@entry
def rounded(requested_bytes: int, divisions: Any) -> Any:
    """Round a request up to a multiple of 512 bytes, or to a division between two powers of two if that is set.

    divisions   16 values of roundup_power2_divisions: for requests below 2 MiB, of 2 to 4 MiB ... of 32 GiB and more
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
