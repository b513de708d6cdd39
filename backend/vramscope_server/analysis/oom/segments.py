"""Converts the segments and blocks of a record to a trace without events, so that the segment map can draw them."""

from __future__ import annotations

import numpy as np

from vramscope.protocol.oom_record import OomRecord
from vramscope.protocol.series import CPU, UNKNOWN
from vramscope.protocol.window import Layout, Window
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace


def trace_of(record: OomRecord) -> Trace | None:
    """Return the trace of a record; None if the layout was not read. Raises BadWindow if its columns contradict each other."""
    if record.layout is None:
        return None
    blocks = record.layout.blocks
    # The record has no stacks of blocks. They are in the recording that was open, if there was one.
    unknown = np.full(len(blocks["address"]) // 8, UNKNOWN, "<i8").tobytes()
    layout = Layout(
        segments=record.layout.segments, blocks={**blocks, "stack": unknown}, counters=record.layout.counters
    )
    window = Window(
        device=CPU if record.device is None else record.device, device_name="", device_total_bytes=record.total_bytes,
        device_free_bytes=record.free_bytes, limit_bytes=record.limit_bytes, torch=record.torch, cuda=None, backend="native",
        settings=record.settings, settings_in_force=record.settings_in_force, reason="", first_step=record.step + 1,
        last_step=record.step + 1, start=layout, end=layout, events={}, pools=record.pools or [(0, 0)],
    )  # fmt: skip
    return from_window(window)
