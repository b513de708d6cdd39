"""Loss of a record, in the minute before the error."""

from __future__ import annotations

import math
from typing import TypedDict

import numpy as np

from vramscope.protocol.oom_record import OomRecord
from vramscope.protocol.series import LOSSES
from vramscope_server.analysis.series.chart_data import LossWindow, SeriesColumn


def loss_of(record: OomRecord) -> tuple[LossWindow | None, list[int]]:
    """Loss with the step of each value; None: no loss was recorded."""
    name = next((name for name in LOSSES if name in record.losses), None)
    if name is None:
        return None, []
    values = np.frombuffer(record.losses[name], "<f8")
    x = (np.frombuffer(record.losses["time_ns"], "<i8") - record.time_ns) / 1e9
    steps = np.frombuffer(record.losses["step"], "<i8").tolist()
    odd = np.flatnonzero(~np.isfinite(values))
    first = (float(x[odd[0]]), steps[odd[0]], float(values[odd[0]])) if odd.size else None
    finite = np.where(np.isfinite(values), values, np.nan)
    column = SeriesColumn(finite, finite, finite)
    loss = LossWindow(
        name=name, x_values=x, envelope=False, rows=len(values), values=column, not_finite=first, odd=odd.size
    )
    return loss, steps


class LossAtError(TypedDict):
    """Loss before the error, for JSON."""

    name: str
    source: str
    count: int
    last: float | None
    """Newest value; None if it is not finite."""
    last_step: int
    first_not_finite_step: int | None


def newest_loss(record: OomRecord) -> LossAtError | None:
    """Name, source and newest value of the loss; None: no loss was recorded."""
    loss, steps = loss_of(record)
    if loss is None or not loss.rows:
        return None
    last = float(loss.values.mean[-1])
    return {
        "name": loss.name,
        "source": LOSSES[loss.name],
        "count": loss.rows,
        "last": last if math.isfinite(last) else None,
        "last_step": steps[-1],
        "first_not_finite_step": None if loss.not_finite is None else loss.not_finite[1],
    }
