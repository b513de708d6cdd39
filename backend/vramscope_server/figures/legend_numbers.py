"""Last, lowest, mean and highest value of a trace over all rows of the window, which is drawn from fewer points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from vramscope.protocol import series
from vramscope_server.analysis.array_types import FloatArray, IntArray


class WholeWindow(TypedDict):
    """Numbers of a trace's legend, in the units of its axis. ``rows`` is the number of rows whose value is known."""

    last: float
    min: float
    mean: float
    max: float
    rows: int


def whole_window(columns: Mapping[str, IntArray], feed: Mapping[str, Any], scale: float) -> WholeWindow | None:
    """Numbers of the trace that ``feed`` describes (``Drawing.trace``). None if a column is missing or no row is known.

    columns  Every row of the window as the wire has it, shape (n,) each.
    scale    Factor from the wire's unit to the axis.

    ``liveValue`` in the pages' ``series.js`` computes the same for one live row.
    """
    less, needed = _names(feed.get("minus")), _names(feed.get("needs"))
    names = [feed["field"], *less, *needed]
    if any(name not in columns for name in names):
        return None
    total = columns[feed["field"]]
    known = (total != series.UNKNOWN) & ((total >= 0) | bool(feed.get("signed")))
    values: FloatArray = total.astype(np.float64)
    for name in less:
        known &= columns[name] >= 0
    for name in needed:
        known &= columns[name] != series.UNKNOWN
    for name in less:
        values = values - columns[name]
    values = values[known] * scale
    if not values.size:
        return None
    if less:
        values = np.maximum(values, 0.0)
    return WholeWindow(
        last=float(values[-1]),
        min=float(values.min()),
        mean=float(values.mean()),
        max=float(values.max()),
        rows=int(values.size),
    )


def _names(given: str | Sequence[str] | None) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)
