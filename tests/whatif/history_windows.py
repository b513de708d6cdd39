"""Histories of snapshot files as recorded windows."""

from __future__ import annotations

from typing import Any

import msgspec

from vramscope.protocol.window import Layout, Window
from vramscope_server.analysis.trace.trace import Trace


def columns(rows: Any, names: Any) -> dict[str, bytes]:
    return {name: getattr(rows, name).astype("<i8").tobytes() for name in names}


def window_of(trace: Trace, **fields: Any) -> Window:
    """The same history as the agent would have recorded it; ``told``: what of its facts is otherwise."""

    def layout(snapshot: Any) -> Layout:
        segments = columns(snapshot.segments, ("address", "size_bytes", "stream", "large", "expandable", "pool"))
        blocks = columns(snapshot.blocks, ("segment", "address", "size_bytes", "requested_bytes", "state", "stack"))
        return Layout(segments=segments, blocks=blocks, counters={"num_ooms": 0})

    names = ("action", "address", "size_bytes", "stream", "time_ns", "pool", "stack", "step", "phase", "module")
    window = Window(
        device=0, device_name="GPU", device_total_bytes=80 << 30, device_free_bytes=70 << 30, limit_bytes=None,
        torch="2.13.0+cu130", cuda="13.0", backend="native", settings=trace.settings, settings_in_force={},
        reason="asked for", first_step=3, last_step=7, start=layout(trace.beginning), end=layout(trace.end),
        events=columns(trace.events, names), pools=[(0, 0)], words=trace.words, stacks=list(trace.stacks),
        frames={name: column.astype("<i8").tobytes() for name, column in trace.frames.items()},
    )  # fmt: skip
    return msgspec.structs.replace(window, **fields)
