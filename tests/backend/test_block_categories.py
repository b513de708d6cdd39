"""Categories of the blocks of a layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from window_maker import training

from vramscope_server.analysis.timeline.block_categories import categories_of_blocks
from vramscope_server.analysis.timeline.curve import allocation_curve
from vramscope_server.analysis.timeline.grouping import grouping_of
from vramscope_server.analysis.timeline.overview import held_by
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.segment_map import ALLOCATED
from vramscope_server.analysis.trace.trace import Trace, layout_at


def bytes_by_category(categories: list[str], size_bytes: np.ndarray) -> dict[str, int]:
    return {name: int(size_bytes[np.array(categories) == name].sum()) for name in categories}


def test_blocks_in_use_have_the_bytes_of_the_categories_after_each_event() -> None:
    trace = from_window(training(2, 4))
    curve = allocation_curve(trace)
    grouping = grouping_of(trace, curve, "category")
    for event in range(0, len(trace.events), 7):
        layout = layout_at(trace, event)
        categories = categories_of_blocks(trace, grouping, layout, event)
        expected = dict(
            zip(grouping.names, held_by(curve, grouping.group, len(grouping), np.array([event]))[:, 0], strict=True)
        )
        if categories is None:
            assert sum(expected.values()) == expected.get("unknown", 0)
            continue
        used = layout.blocks.state == ALLOCATED
        found = bytes_by_category(
            [name for name, one in zip(categories, used, strict=True) if one], layout.blocks.size_bytes[used]
        )
        assert found == {name: held for name, held in expected.items() if held}


def test_a_block_of_another_size_than_the_allocation_there_has_no_category() -> None:
    """The layout at an out-of-memory error is another record: memory may have changed since the recording ended."""
    trace = from_window(training(2, 4))
    grouping = grouping_of(trace, allocation_curve(trace), "category")
    last = len(trace.events) - 1
    known = categories_of_blocks(trace, grouping, trace.end, last)
    assert known is not None
    at = next(at for at, name in enumerate(known) if name == "optimizer")
    sizes = trace.end.blocks.size_bytes.copy()
    sizes[at] -= 512
    changed = replace(trace.end, blocks=replace(trace.end.blocks, size_bytes=sizes))
    now = categories_of_blocks(trace, grouping, changed, last)
    assert now is not None
    assert now[at] == "unknown"
    assert now[:at] + now[at + 1 :] == known[:at] + known[at + 1 :]


def test_without_any_known_category_there_are_none() -> None:
    trace: Trace = from_window(training(2, 4))
    grouping = replace(grouping_of(trace, allocation_curve(trace), "category"), names=["unknown"])
    nobody = replace(grouping, group=np.zeros(len(trace.lives), np.int32))
    assert categories_of_blocks(trace, nobody, trace.end, len(trace.events) - 1) is None
