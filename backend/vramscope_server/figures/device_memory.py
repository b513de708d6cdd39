"""Device memory by owner: PyTorch's parts, the rest of this process, other processes. The parts add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES
from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.chart_data import RunWindow, StreamWindow
from vramscope_server.figures.drawing import Drawing, byte_unit, highest, known, samples_of

COUNTED = ["reserved_bytes", "active_bytes", "requested_bytes", "inactive_split_bytes"]
POOLS = "private_pools_bytes"
INSIDE: Final = {
    "requested_bytes": "private_requested_bytes",
    "active_bytes": "private_active_bytes",
    "inactive_split_bytes": "private_inactive_split_bytes",
    "reserved_bytes": POOLS,
}
"""Columns of the parts that are in private pools."""
TOLD = ["process_device_bytes", "others_device_bytes", "device_used_bytes"]
NEEDS = {"samples": ["allocated_bytes", *COUNTED, *INSIDE.values(), *TOLD]}
AT_PEAK = ("allocated_bytes", [*COUNTED, *INSIDE.values(), *TOLD])
"""Of thinned samples, a bucket shows the sample with the highest allocated bytes, so that the parts add up."""


class Part(NamedTuple):
    """One part of device memory: a column minus others."""

    role: str
    colour: str
    label: str
    field: str
    minus: tuple[str, ...]
    meaning: str


OF_PYTORCH: Final = (
    Part("requested", "requested", "requested", "requested_bytes", (), "requested bytes of blocks in use"),
    Part("rounding", "rounding", "rounding", "active_bytes", ("requested_bytes",), "allocated minus requested"),
    Part("inactive-split", "inactive-split", "free blocks", "inactive_split_bytes", (), "free, in segments that are partly in use"),
    Part("unused", "unused", "cached segments", "reserved_bytes", ("active_bytes", "inactive_split_bytes"),
         "segments that are wholly free"),
)  # fmt: skip
OF_POOLS: Final = Part(
    "private", "series-7", "private pools (CUDA graphs)", POOLS, (),
    "memory for replays of CUDA graphs, including free blocks that each replay writes to",
)  # fmt: skip
OF_PROCESS: Final = Part(
    "context", "optimizer", "context, libraries", "process_device_bytes", ("reserved_bytes",),
    "this process outside PyTorch's allocator: CUDA context, kernels, libraries such as NCCL",
)  # fmt: skip
OF_OTHERS: Final = Part(
    "others", "other", "other processes, unattributed", "device_used_bytes", ("process_device_bytes",),
    "in use on the device outside this process: other processes and unattributed memory",
)  # fmt: skip
OTHERS_APART: Final = (
    Part("others", "other", "other processes", "others_device_bytes", (), SAMPLES["others_device_bytes"].meaning),
    Part("unattributed", "unknown", "unattributed", "device_used_bytes", ("process_device_bytes", "others_device_bytes"),
         "in use on the device by no compute process: the driver and the display"),
)  # fmt: skip
OUTSIDE: Final = Part(
    "outside", "other", "outside PyTorch", "device_used_bytes", ("reserved_bytes",),
    "context, libraries, other processes and unattributed; the share of this process is unknown",
)  # fmt: skip


def draw(window: RunWindow) -> go.Figure:
    """Draw stacked parts up to the memory in use on the device. Missing values of the driver are named as unknown."""
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
        drawing.no_rows("samples", "no data in this window")
        return drawing.done()
    for part in OF_PYTORCH:
        if not known(sizes[part.role]):
            drawing.unknown(part.label)
    if not device:
        drawing.unknown("other processes, unattributed" if process else "memory outside PyTorch")
    elif not process:
        drawing.say("unknown: the share of this process outside PyTorch")
    if drawing.figure.data:
        drawing.capacity(window.run.get("capacity_bytes"), unit)
    return drawing.done()


def _values(samples: StreamWindow) -> Callable[[str], FloatArray]:
    """Return a column at one sample of each bucket, or the bucket's mean if the driver was not read then."""

    def of(name: str) -> FloatArray:
        mean = samples.columns[name].mean
        if not samples.at_peak:
            return mean
        values = samples.at_peak[name]
        return np.where(np.isfinite(values), values, mean) if name in TOLD else values

    return of


def _feed(part: Part, *, outside_pools: bool) -> dict[str, Any]:
    """Return how a live row yields the part."""
    minus = [*part.minus, *([INSIDE[part.field]] if outside_pools else ())]
    plus = [INSIDE[name] for name in part.minus] if outside_pools else []
    return (
        {"stream": "samples", "field": part.field}
        | ({"minus": minus} if minus else {})
        | ({"plus": plus} if plus else {})
    )


def _outside_pools(part: Part, values: Callable[[str], FloatArray]) -> FloatArray:
    """Return the part without private pools. Without private pools nothing is subtracted."""

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
