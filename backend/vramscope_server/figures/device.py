"""The device's memory, and whose it is: what PyTorch reserved and for what, this process's rest, and the others; it adds up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import plotly.graph_objects as go

from vramscope.wire import SAMPLES
from vramscope_server.analysis.window import FloatArray, RunWindow, StreamWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, highest, known, samples_of

COUNTED = ["reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes"]
TOLD = ["process_device_bytes", "device_used_bytes"]
NEEDS = {"samples": ["allocated_bytes", *COUNTED, *TOLD]}
AT_PEAK = ("allocated_bytes", [*COUNTED, *TOLD])
"""Where samples were thinned, a bucket shows the moment with most allocated: a stack of one moment closes."""


class Part(NamedTuple):
    """One part of the device's memory: a column, less others."""

    role: str
    colour: str
    label: str
    field: str
    minus: tuple[str, ...]
    meaning: str


OF_PYTORCH: Final = (
    Part("requested", "requested", "tensors, asked for", "requested_bytes", (),
         "asked for, in blocks in use; those of private pools (CUDA graphs) among them"),
    Part("rounding", "rounding", "rounding", "active_bytes", ("requested_bytes",), "what blocks in use have beyond that"),
    Part("inactive-split", "inactive-split", "free pieces", "inactive_split_bytes", (), "free, in segments that are partly in use"),
    Part("unused", "unused", "cached segments", "reserved_bytes", ("active_bytes", "inactive_split_bytes"),
         "whole segments that PyTorch keeps and nobody uses"),
)  # fmt: skip
OF_PROCESS: Final = Part(
    "context", "optimizer", "context, libraries", "process_device_bytes", ("reserved_bytes",),
    "of this process, outside PyTorch's allocator: CUDA's context, loaded kernels, libraries such as NCCL",
)  # fmt: skip
OF_OTHERS: Final = Part(
    "others", "other", "other processes, unattributed", "device_used_bytes", ("process_device_bytes",),
    "in use on the device and not of this process: other processes, and what the driver attributes to none",
)  # fmt: skip
OUTSIDE: Final = Part(
    "outside", "other", "outside PyTorch", "device_used_bytes", ("reserved_bytes",),
    "context, libraries, other processes and unattributed: what of it is this process's own is not told here",
)  # fmt: skip


def draw(window: RunWindow) -> go.Figure:
    """Stacked parts up to what is in use on the device. What the driver does not tell is unknown, and said to be."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    values = _values(samples)
    process, device = (known(values(name)) for name in TOLD)
    parts = [*OF_PYTORCH, *([OF_PROCESS, *([OF_OTHERS] if device else [])] if process else [OUTSIDE] if device else [])]
    sizes = {part.role: _size(part, values) for part in parts}
    unit = byte_unit(highest(values("device_used_bytes"), values("reserved_bytes")))
    drawing.y_axis(unit)
    for part in parts:
        if not known(sizes[part.role]):
            continue
        feed: dict[str, Any] = {"stream": "samples", "field": part.field}
        drawing.trace(
            samples.x_values,
            sizes[part.role],
            role=part.role,
            label=part.label,
            unit=unit,
            kind="area",
            stackgroup="device",
            stackgaps="interpolate",  # a slow driver is asked less often than the allocator
            meaning=part.meaning,
            shown={"colour": part.colour},
            feed=feed | ({"minus": list(part.minus)} if part.minus else {}),
        )
    if device:
        drawing.trace(
            samples.x_values,
            values("device_used_bytes"),
            role="device-used",
            label="device in use",
            unit=unit,
            kind="line",
            line={"width": 1.2, "dash": "dot"},
            connectgaps=True,
            meaning=SAMPLES["device_used_bytes"].meaning,
            feed={"stream": "samples", "field": "device_used_bytes"},
        )
    if not samples.rows:
        drawing.say("nothing was recorded in this window")
        return drawing.done()
    for part in OF_PYTORCH:
        if not known(sizes[part.role]):
            drawing.unknown(part.label)
    if not device:
        drawing.unknown("other processes, unattributed" if process else "what is outside PyTorch")
    elif not process:
        drawing.say("what of it outside PyTorch is this process's own: not told")
    if drawing.figure.data:
        drawing.capacity(window.run.get("capacity_bytes"), unit)
    return drawing.done()


def _values(samples: StreamWindow) -> Callable[[str], FloatArray]:
    """A column, as of one moment in each bucket; where the driver was not asked then, as in the mean of the bucket."""

    def of(name: str) -> FloatArray:
        mean = samples.columns[name].mean
        if not samples.at_peak:
            return mean
        values = samples.at_peak[name]
        return np.where(np.isfinite(values), values, mean) if name in TOLD else values

    return of


def _size(part: Part, values: Callable[[str], FloatArray]) -> FloatArray:
    size: FloatArray = values(part.field)
    for name in part.minus:
        size = size - values(name)
    return np.maximum(size, 0.0)
