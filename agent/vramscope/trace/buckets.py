"""The buckets of DistributedDataParallel: copies of all gradients in a few blocks, whose addresses it tells nobody.

It tells their sizes, for logging. A block of such a size that nobody owns is a bucket, where there are as many of them as buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Any, Final

from vramscope.wire import CPU

OWNER: Final = "bucket of gradients"
_SIZES: Final = ("bucket_sizes", "rebuilt_bucket_sizes")
"""made with the wrapper, and made anew in its second forward: in the order in which gradients come"""


def sizes_of(modules: Iterable[Any]) -> Counter[int]:
    """How many buckets of how many bytes there are or were. Some 20 µs a wrapper; nothing where there is none."""
    sizes: Counter[int] = Counter()
    for module in modules:
        tell = getattr(module, "_get_ddp_logging_data", None)
        if tell is not None:
            told = tell()
            for name in _SIZES:
                sizes.update(int(part) for part in str(told.get(name, "")).split(",") if part.strip().isdecimal())
    return sizes


def held_bytes(modules: Iterable[Any], device: int) -> int:
    """That lie on a device beside the gradients, where these are no views of them. Some 20 µs a wrapper."""
    held = 0
    for module in modules:
        tell = getattr(module, "_get_ddp_logging_data", None)
        if tell is None or getattr(module, "gradient_as_bucket_view", False):
            continue
        first = next(module.parameters(), None)
        if first is not None and (first.device.index if first.is_cuda else CPU) == device:
            told = tell()
            newest = next((str(told[name]) for name in reversed(_SIZES) if told.get(name)), "")
            held += sum(int(part) for part in newest.split(",") if part.strip().isdecimal())
    return held


def addresses_of(sizes: Counter[int], segments: Iterable[dict[str, Any]], owned: Container[int]) -> list[int]:
    """Where the buckets lie among the blocks of a snapshot; of a size of which there are others, too, none."""
    found: dict[int, list[int]] = {size: [] for size in sizes}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            size = block.get("requested_size")
            if size in found and block["state"] == "active_allocated" and address not in owned:
                found[size].append(address)
            address += block["size"]
    return [address for size, places in found.items() if len(places) <= sizes[size] for address in places]
