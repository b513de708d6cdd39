"""The device's memory, and whose it is: what PyTorch reserved and for what, this process's rest, and the others; it adds up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES
from vramscope_server.analysis.series.window import FloatArray, RunWindow, StreamWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, highest, known, samples_of

COUNTED = ["reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes"]
POOLS = "private_pools_bytes"
INSIDE: Final = {
    "requested_bytes": "private_requested_bytes",
    "active_bytes": "private_active_bytes",
    "inactive_split_bytes": "private_inactive_split_bytes",
    "reserved_bytes": POOLS,
}
"""What of the allocator's columns lies in private pools."""
TOLD = ["process_device_bytes", "others_device_bytes", "device_used_bytes"]
NEEDS = {"samples": ["allocated_bytes", *COUNTED, *INSIDE.values(), *TOLD]}
AT_PEAK = ("allocated_bytes", [*COUNTED, *INSIDE.values(), *TOLD])
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
    Part("requested", "requested", "tensors, asked for", "requested_bytes", (), "asked for, in blocks in use"),
    Part("rounding", "rounding", "rounding", "active_bytes", ("requested_bytes",), "what blocks in use have beyond that"),
    Part("inactive-split", "inactive-split", "free pieces", "inactive_split_bytes", (), "free, in segments that are partly in use"),
    Part("unused", "unused", "cached segments", "reserved_bytes", ("active_bytes", "inactive_split_bytes"),
         "whole segments that PyTorch keeps and nobody uses"),
)  # fmt: skip
OF_POOLS: Final = Part(
    "private", "series-7", "private pools (CUDA graphs)", POOLS, (),
    "kept for replays of CUDA graphs: what is in use there, and what counts as free but is written to by each replay",
)  # fmt: skip
OF_PROCESS: Final = Part(
    "context", "optimizer", "context, libraries", "process_device_bytes", ("reserved_bytes",),
    "of this process, outside PyTorch's allocator: CUDA's context, loaded kernels, libraries such as NCCL",
)  # fmt: skip
OF_OTHERS: Final = Part(
    "others", "other", "other processes, unattributed", "device_used_bytes", ("process_device_bytes",),
    "in use on the device and not of this process: other processes, and what the driver attributes to none",
)  # fmt: skip
OTHERS_APART: Final = (
    Part("others", "other", "other processes", "others_device_bytes", (), SAMPLES["others_device_bytes"].meaning),
    Part("unattributed", "unknown", "unattributed", "device_used_bytes", ("process_device_bytes", "others_device_bytes"),
         "in use on the device, and of no process that computes, as the driver tells: its own, and what draws the screen"),
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
    process, others, device = (known(values(name)) for name in TOLD)
    pools = highest(values(POOLS)) > 0
    of_pytorch = [*OF_PYTORCH, *([OF_POOLS] if pools else [])]
    of_others = OTHERS_APART if others else (OF_OTHERS,)
    parts = [*of_pytorch, *([OF_PROCESS, *(of_others if device else ())] if process else [OUTSIDE] if device else [])]
    sizes = {part.role: _size(part, values) for part in parts}
    if pools:
        sizes |= {part.role: _outside_pools(part, values) for part in OF_PYTORCH}
    unit = byte_unit(highest(values("device_used_bytes"), values("reserved_bytes")))
    drawing.y_axis(unit)
    for part in parts:
        if not known(sizes[part.role]):
            continue
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
            feed=_feed(part, outside_pools=pools and part in OF_PYTORCH),
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
        drawing.no_rows("samples", "nothing was recorded in this window")
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


def _feed(part: Part, *, outside_pools: bool) -> dict[str, Any]:
    """How a live row tells it."""
    minus = [*part.minus, *([INSIDE[part.field]] if outside_pools else ())]
    plus = [INSIDE[name] for name in part.minus] if outside_pools else []
    return (
        {"stream": "samples", "field": part.field}
        | ({"minus": minus} if minus else {})
        | ({"plus": plus} if plus else {})
    )


def _outside_pools(part: Part, values: Callable[[str], FloatArray]) -> FloatArray:
    """The part without what of it lies in private pools. Where there are none, what lies inside is not told, and nothing."""

    def outside(name: str) -> FloatArray:
        inside = values(INSIDE[name])
        result: FloatArray = values(name) - np.where(values(POOLS) == 0, 0.0, inside)
        return result

    return _size(part, outside)


def _size(part: Part, values: Callable[[str], FloatArray]) -> FloatArray:
    size: FloatArray = values(part.field)
    for name in part.minus:
        size = size - values(name)
    return np.maximum(size, 0.0)
