"""The allocator's segments and blocks in a record, as a trace without events: it is drawn by what draws a recording's map."""

from __future__ import annotations

import numpy as np

from vramscope.protocol.oom_record import BlackBox
from vramscope.protocol.series import CPU, UNKNOWN
from vramscope.protocol.window import Layout, Window
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace


def trace_of(box: BlackBox) -> Trace | None:
    """None where the layout was not read. Raises BadWindow where its columns contradict each other."""
    if box.layout is None:
        return None
    blocks = box.layout.blocks
    # (Stacks of blocks stand in the window that was open then, if one was: the record itself has none.)
    unknown = np.full(len(blocks["address"]) // 8, UNKNOWN, "<i8").tobytes()
    layout = Layout(segments=box.layout.segments, blocks={**blocks, "stack": unknown}, counters=box.layout.counters)
    window = Window(
        device=CPU if box.device is None else box.device, device_name="", device_total_bytes=box.total_bytes,
        device_free_bytes=box.free_bytes, limit_bytes=box.limit_bytes, torch=box.torch, cuda=None, backend="native",
        settings=box.settings, settings_in_force=box.settings_in_force, reason="", first_step=box.step + 1,
        last_step=box.step + 1, start=layout, end=layout, events={}, pools=box.pools or [(0, 0)],
    )  # fmt: skip
    return from_window(window)
