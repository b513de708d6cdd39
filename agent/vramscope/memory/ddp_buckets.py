"""The buckets of DistributedDataParallel: copies of all gradients in a few blocks, whose addresses it tells nobody.

It tells their sizes, for logging. A block of such a size that nobody owns is a bucket, where there are as many of them as buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Any, Final

from vramscope.protocol.series import CPU

OWNER: Final = "bucket of gradients"
_TELL: Final = "_get_ddp_logging_data"
_SIZES: Final = ("bucket_sizes", "rebuilt_bucket_sizes")
"""made with the wrapper, and made anew in its second forward: in the order in which gradients come"""


def tells(module: Any) -> bool:
    """Whether it is a wrapper. 2 µs where it is none, as a module looks in all its dicts."""
    return hasattr(module, _TELL)


def sizes_of(modules: Iterable[Any]) -> Counter[int]:
    """How many buckets of how many bytes there are or were. Some 20 µs a wrapper; nothing where there is none."""
    return Counter(size for module in modules for sizes in _told_by(module) for size in sizes)


def held_bytes(modules: Iterable[Any], device: int) -> int:
    """That lie on a device beside the gradients, where these are no views of them. Some 20 µs a wrapper."""
    held = 0
    for module in modules:
        told = [] if getattr(module, "gradient_as_bucket_view", False) else _told_by(module)
        first = next(module.parameters(), None) if told else None
        if first is not None and (first.device.index if first.is_cuda else CPU) == device:
            held += sum(told[-1])
    return held


def _told_by(module: Any) -> list[list[int]]:
    """Bytes of each of its buckets, as they were made and as they were made anew, as far as they have been; [] of no wrapper."""
    tell = getattr(module, _TELL, None)
    told = {} if tell is None else tell()
    return [
        [int(part) for part in str(told[name]).split(",") if part.strip().isdecimal()]
        for name in _SIZES
        if told.get(name)
    ]


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
