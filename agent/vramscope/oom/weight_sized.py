"""Memory without an owner that may have been computed from the weights: casts of autocast, weights that were 8 bits, or normalised.

A graph saves them for the backward. They are as large with one row as with a thousand. Size alone proves nothing, as activations
may be as large by coincidence. So such bytes are only left out of what a smaller batch is promised to save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

LEAST_NUMBERS: Final = 1 << 18
"""Elements of a weight. Smaller ones need little memory."""
BYTES: Final = (2, 4)
"""Bytes of a number of what is computed from weights."""
EACH: Final = 2
"""Results per weight that are as large: it is cast, then scaled, say."""


def numbers_of(weights: Iterable[torch.Tensor]) -> Counter[int]:
    """Return the number of weights by their elements."""
    return Counter(size for one in weights if (size := one.numel()) >= LEAST_NUMBERS)


def bytes_of(segments: Iterable[Mapping[str, Any]], numbers: Mapping[int, int], owned: Collection[int]) -> int:
    """Return the bytes of allocated blocks without an owner that are as large as one of the weights.

    segments   of one device, as in a memory snapshot
    numbers    as of ``numbers_of``
    owned      addresses of blocks that have an owner
    """
    left: Counter[int] = Counter()
    for size, count in numbers.items():
        for width in BYTES:
            left[size * width] += EACH * count
    found = 0
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            asked = block.get("requested_size", block["size"])
            if block["state"] == "active_allocated" and left[asked] > 0 and address not in owned:
                left[asked] -= 1
                found += asked
            address += block["size"]
    return found
