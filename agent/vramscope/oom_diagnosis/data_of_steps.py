"""Data that each step makes before its forward and uses as a whole: batches, and what a teacher returns for them."""

from __future__ import annotations

from math import prod
from typing import Final

from vramscope.protocol.oom_record import OomRecord

AS_MUCH: Final = 1.1
"""Ratio up to which a variable is as large as what the last step had before its forward."""


def is_made_in_each_step(record: OomRecord, held_bytes: int) -> bool:
    """Whether a variable has so much because this step's input is so large.

    It was not there when the last step ended, and that step had as much before its own forward, in proportion to its input.
    """
    then, ended = record.before_forward_in_last_step_bytes, record.last_step.get("end_allocated_bytes")
    if then is None or ended is None:
        return False
    owned = sum(record.owned_bytes.values())
    before = prod(record.input_shape_before)
    ratio = max(1.0, prod(record.input_shape) / before) if record.input_shape and before else 1.0
    return ended - owned < held_bytes <= AS_MUCH * ratio * max(0, then - owned)
