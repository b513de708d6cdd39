"""Phases of a training step."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Phase(IntEnum):
    """Code of a phase: its position in ``series.PHASES``.

    A phase lasts until the next one begins. FORWARD includes the loss. DATA is everything from the end of a step to the next
    forward pass: loading, copying, ``zero_grad``. BACKWARD ends when the call returns. OTHER is what runs between that and the
    next phase: clipping, unscaling, reducing gradients by hand.
    """

    OTHER = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    EVAL = 5


OTHER: Final = Phase.OTHER
DATA: Final = Phase.DATA
FORWARD: Final = Phase.FORWARD
BACKWARD: Final = Phase.BACKWARD
OPTIMIZER: Final = Phase.OPTIMIZER
EVAL: Final = Phase.EVAL
