"""Categories of the blocks of a layout, for the segment map."""

from __future__ import annotations

import numpy as np

from vramscope_server.analysis.ownership.categories import CATEGORIES, UNKNOWN
from vramscope_server.analysis.timeline.grouping import Grouping
from vramscope_server.analysis.trace.address_lookup import AddressIndex, allocation_at
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import Layout


def categories_of_blocks(
    trace: Trace, grouping: Grouping, layout: Layout, event: int, index: AddressIndex | None = None
) -> list[str] | None:
    """Return the category of each block of a layout after an event of a recording; None if no category is known.

    The layout may be another record of the same process, as that of an out-of-memory error. A block is known if the recording
    has an allocation of its address and size there. ``grouping``: by category. ``index``: of the trace;
    made if it is not given.
    """
    blocks = layout.blocks
    life = allocation_at(trace, blocks.address, np.full(len(blocks), event + 1), index)
    known = (
        (life >= 0) & (trace.lives.size_bytes[np.maximum(life, 0)] == blocks.size_bytes)
        if len(trace.lives)
        else life >= 0
    )
    unknown = CATEGORIES[UNKNOWN]
    found = [
        grouping.names[grouping.group[at]] if is_known else unknown for at, is_known in zip(life, known, strict=True)
    ]
    return found if any(name != unknown for name in found) else None
