"""Buckets of DistributedDataParallel: copies of all gradients in a few blocks, whose addresses it does not report.

It reports their sizes, for logging. An unowned block of such a size is a bucket, if there are as many of them as buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from typing import Any, Final

from vramscope.memory.pytorch_snapshot import SnapshotSegment
from vramscope.process.first_parameter import first_parameter
from vramscope.protocol.series import CPU

OWNER: Final = "bucket of gradients"
_LOGGING_DATA: Final = "_get_ddp_logging_data"
_SIZES: Final = ("bucket_sizes", "rebuilt_bucket_sizes")
"""Names of the sizes in DDP's logging data: made with the wrapper, and rebuilt in its second forward in the order of the
gradients."""


def is_wrapper(module: Any) -> bool:
    """Return whether a module is a DDP wrapper. 2 µs if it is none, because a module searches all its dicts."""
    return hasattr(module, _LOGGING_DATA)


def sizes_of(modules: Iterable[Any]) -> Counter[int]:
    """Count buckets by their size in bytes. About 20 µs a wrapper."""
    return Counter(size for module in modules for sizes in _sizes_from_logging(module) for size in sizes)


def held_bytes(modules: Iterable[Any], device: int) -> int:
    """Return the bytes of buckets on a device that are not views of the gradients. About 20 µs a wrapper."""
    total = 0
    for module in modules:
        data = [] if getattr(module, "gradient_as_bucket_view", False) else _sizes_from_logging(module)
        first = first_parameter(module) if data else None
        if first is not None and (first.device.index if first.is_cuda else CPU) == device:
            total += sum(data[-1])
    return total


def _sizes_from_logging(module: Any) -> list[list[int]]:
    """Return the sizes of a wrapper's buckets, as first made and as rebuilt; [] for another module."""
    get_data = getattr(module, _LOGGING_DATA, None)
    data = {} if get_data is None else get_data()
    return [
        [int(part) for part in str(data[name]).split(",") if part.strip().isdecimal()]
        for name in _SIZES
        if data.get(name)
    ]


def addresses_of(sizes: Counter[int], segments: Iterable[SnapshotSegment], owned: Container[int]) -> list[int]:
    """Return addresses of buckets among the blocks of a snapshot; none for a size that other blocks have too."""
    found: dict[int, list[int]] = {size: [] for size in sizes}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            size = block.get("requested_size")
            if size in found and block["state"] == "active_allocated" and address not in owned:
                found[size].append(address)
            address += block["size"]
    return [address for size, places in found.items() if len(places) <= sizes[size] for address in places]
