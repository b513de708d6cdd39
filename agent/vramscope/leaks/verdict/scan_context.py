"""State of the loop at the time of a scan."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass
class ScanContext:
    """What the detector knows of the loop when it scans. Iterations are those in which age is counted."""

    step: int
    boundaries: Sequence[int]
    """Autograd's sequence numbers at the ends of the last iterations, rising."""
    fresh: bool
    """True between an optimizer step and the next forward: anything retained now overlaps with the next graph."""
    optimizer: int
    """Id of the optimizer that stepped last."""
    optimizers: frozenset[int]
    """Ids of the optimizers that step in turn."""
    evaluating: bool
    """True where graphs are built and no backward follows."""
    last_backward: int
    """Sequence number at the last backward."""
    kept_iterations: int
    """Consecutive iterations whose graphs are all still alive."""
    ages_are_sure: bool
    """False after a differentiable backward on a GPU. Sequence numbers belong to a thread, and nodes that autograd's threads make
    look old. Old graphs must then show in the sentinels too, and what is new must not have been there before."""
    old_graphs: int
    """Live graphs of earlier iterations, by the sentinels."""
    retain_graph_at: tuple[str, int, str] | None
    """File, line and function of the last backward(retain_graph=True)."""
    per: str = "step"
    """Unit of an iteration, one of series.ROUNDS."""
    input_elements: int = 0
    """Elements of the newest input of the model; 0 if unknown."""
    epoch_ended: int = 0
    """Iteration in which the last epoch ended; 0 if none has."""
    ends_epoch: bool = False
    """True where an epoch has just ended."""
    evaluated_batches: int = 0
    """Finished batches of an evaluation without gradients; 0 outside one."""
    complete: bool = False
    """True where the scan left nothing out: a holder that it did not see is gone."""


def iterations_since(number: int, boundaries: Sequence[int]) -> int:
    """Iterations that have ended since the operation with that sequence number."""
    return len(boundaries) - bisect.bisect_right(boundaries, number)
