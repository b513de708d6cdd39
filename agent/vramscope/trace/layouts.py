"""A snapshot's segments and blocks of one device, as the columns of a window's layout."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Final

from vramscope.trace.pools import DEFAULT, Pools
from vramscope.trace.stacks import Stacks
from vramscope.window import BLOCKS, SEGMENTS, STATES, Layout

SLICE_BLOCKS: Final = 1000
"""some 1 ms, then the interpreter's lock is let go"""

_STATES: Final = {name: code for code, name in enumerate(STATES)} | {"active_awaiting_free": 2}


def layout(
    segments: list[dict[str, Any]], pools: Pools, stacks: Stacks, counters: dict[str, int], pause: Callable[[], None]
) -> Layout:
    """``segments``: those of the device, which are emptied of their blocks. ``pause`` is called now and then."""
    segments.sort(key=lambda segment: int(segment["address"]))
    of_segments: list[tuple[int, ...]] = []
    of_blocks: list[tuple[int, ...]] = []
    done = 0
    for number, segment in enumerate(segments):
        pool = pools.numbers([segment.get("segment_pool_id", DEFAULT)])[0]
        of_segments.append(
            (
                segment["address"],
                segment["total_size"],
                segment["stream"],
                segment["segment_type"] == "large",
                bool(segment.get("is_expandable", False)),
                pool,
            )
        )
        address = segment["address"]
        for block in segment.pop("blocks"):
            size, state = block["size"], _STATES[block["state"]]
            of_blocks.append(
                (
                    number,
                    address,
                    size,
                    block.get("requested_size", size),
                    state,
                    stacks.numbers([block.get("frames")])[0],
                )
            )
            address += size
        if len(of_blocks) - done > SLICE_BLOCKS:
            done = len(of_blocks)
            pause()
    return Layout(
        segments=_columns(tuple(SEGMENTS), of_segments), blocks=_columns(tuple(BLOCKS), of_blocks), counters=counters
    )


def _columns(names: tuple[str, ...], rows: list[tuple[int, ...]]) -> dict[str, bytes]:
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return {name: array("q", column).tobytes() for name, column in zip(names, columns, strict=True)}
