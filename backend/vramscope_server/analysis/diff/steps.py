"""Allocated bytes of one step over its share of events, comparable with a step of another recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from vramscope_server.analysis.array_types import FloatArray

if TYPE_CHECKING:
    from vramscope_server.analysis.timeline.curve import AllocationCurve
    from vramscope_server.analysis.trace.trace import Trace

POINTS: Final = 600


@dataclass(frozen=True, eq=False)
class StepLine:
    """Curve of one step. ``share`` is 0 to 100 % of the step's events; each point is the highest value of its part."""

    step: int | None
    """None if steps are unknown; the curve then covers the whole recording."""
    share: FloatArray
    allocated_bytes: FloatArray


def step_line(trace: Trace, curve: AllocationCurve, moment: int, points: int = POINTS) -> StepLine:
    """Curve of the step with this event. About 5 ns per event."""
    steps = trace.events.step
    code = int(steps[max(moment, 0)]) if len(steps) else -1
    first, end = -1, curve.end
    if code >= 0:
        inside = np.flatnonzero(steps == code)
        first, end = int(inside[0]) - 1, int(inside[-1]) + 1
    moments = curve.moments(first, end, points)
    share = 100 * (moments - first) / max(1, end - 1 - first)
    return StepLine(code if code >= 0 else None, share, curve.allocated[moments + 1].astype(np.float64))
