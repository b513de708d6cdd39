"""Parts of reserved memory over time (docs/fragmentation.md). They add up to reserved."""

from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from vramscope.protocol.series import SAMPLES
from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.series.chart_data import RunWindow, StreamWindow
from vramscope_server.figures.drawing import COUNT, Drawing, Unit, byte_unit, highest, known, samples_of

READ = ["unusable_bytes", "reserved_bytes", "active_bytes", "requested_bytes"]
NEEDS = {"samples": [*READ, "alloc_retries"]}
AT_PEAK = ("unusable_bytes", READ)
"""Of thinned samples, a bucket shows the reading with the most unusable bytes."""

APART: Final = 10
"""Number of usual distances between readings that makes a gap. In a gap free and unusable are one area."""

PARTS: Final = (
    ("requested", "requested", "requested, in blocks that tensors own or other streams still use"),
    ("rounding", "rounding", "allocated minus requested"),
    ("usable", "free", "free and usable for this run's requests, weighted by size"),
    ("unusable", "unusable", SAMPLES["unusable_bytes"].meaning),
    ("unused", "free or unusable", "reserved minus active: free or unusable"),
)
_FEEDS: Final[dict[str, dict[str, Any]]] = {
    "requested": {"field": "requested_bytes"},
    "rounding": {"field": "active_bytes", "minus": "requested_bytes"},
    "usable": {"field": "reserved_bytes", "minus": ["active_bytes", "unusable_bytes"]},
    "unusable": {"field": "unusable_bytes"},
    "unused": {"field": "reserved_bytes", "minus": "active_bytes"},
}


def draw(window: RunWindow) -> go.Figure:
    """Draw the parts of reserved memory, stacked, and allocation retries."""
    drawing = Drawing.over(window)
    samples = samples_of(window)
    columns = samples.columns
    unit = byte_unit(highest(columns["reserved_bytes"].max))
    drawing.y_axis(unit)
    _stack(drawing, samples, unit)
    if known(columns["reserved_bytes"].max):
        drawing.trace(
            samples.x_values,
            columns["reserved_bytes"].max,
            role="total",
            label="reserved",
            unit=unit,
            kind="line",
            line={"width": 1},
            meaning=SAMPLES["reserved_bytes"].meaning,
            feed={"stream": "samples", "field": "reserved_bytes"},
        )
    if not samples.rows:
        drawing.no_rows("samples", "no data in this window")
    _retries(drawing, samples)
    return drawing.done()


def _stack(drawing: Drawing, samples: StreamWindow, unit: Unit) -> None:
    parts, at = _parts(samples)
    read = known(parts["unusable"])
    for name, label, meaning in PARTS:
        values = parts[name]
        if not known(values):
            if samples.rows and name in ("requested", "rounding"):
                drawing.unknown(label)
            continue
        # Live, only rows with readings are drawn: some samples of many.
        needs = {"needs": "unusable_bytes"} if read else {}
        drawing.trace(
            samples.x_values[at],
            values,
            role=name,
            label=label,
            unit=unit,
            kind="area",
            stackgroup="parts",
            stackgaps="infer zero",
            meaning=meaning,
            line={"shape": "hvh"} if read else {},  # a reading stands for what lies around it
            feed=None if read and name == "unused" else {"stream": "samples", **_FEEDS[name], **needs},
        )
    if not samples.rows:
        return
    if not known(parts["unused"]) and not read:
        drawing.unknown("free")
    elif not read:
        drawing.say("unusable: needs a recording")
    elif known(parts["unused"]):
        drawing.say("unusable is unknown where free is one area")


def _parts(samples: StreamWindow) -> tuple[dict[str, FloatArray], IntArray]:
    """Return the parts at the readings of unusable bytes and in the gaps between them, and their rows."""
    columns = samples.columns
    peak = samples.at_peak or {name: columns[name].mean for name in READ}
    read = np.isfinite(peak["unusable_bytes"])
    unusable, reserved, active, requested = (np.where(read, peak[name], columns[name].mean) for name in READ)
    free = np.maximum(reserved - active, 0.0)
    unusable = np.minimum(unusable, free)  # the pieces are read a moment after the counters
    known_apart = np.isfinite(unusable)
    parts = {
        "requested": requested,
        "rounding": np.maximum(active - requested, 0.0),
        "usable": free - unusable,
        "unusable": unusable,
        "unused": np.where(known_apart, np.nan, free),
    }
    at = np.flatnonzero(known_apart | _in_gap(known_apart))
    return {name: values[at] for name, values in parts.items()}, at


def _in_gap(read: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which rows are in a gap without readings; all rows if there are no readings."""
    at = np.flatnonzero(read)
    if not at.size:
        return np.ones(read.size, bool)
    usual = float(np.percentile(np.diff(at), 75)) if at.size > 1 else 1.0
    edges = np.r_[-1, at, read.size]
    gap = np.zeros(read.size, bool)
    for before, after in itertools.pairwise(edges):
        if after - before > APART * usual:
            gap[before + 1 : after] = True
    return gap


def _retries(drawing: Drawing, samples: StreamWindow) -> None:
    retries = samples.columns["alloc_retries"].max
    if not known(retries):
        return
    if highest(retries) == 0:
        drawing.say("no allocation retries")
        return
    drawing.trace(
        samples.x_values,
        retries,
        role="retries",
        label="allocation retries",
        unit=COUNT,
        kind="line",
        axis="y2",
        line={"shape": "hv", "width": 1.2, "dash": "dash"},
        meaning=SAMPLES["alloc_retries"].meaning,
        feed={"stream": "samples", "field": "alloc_retries"},
    )
    drawing.count_axis("retries")
