"""What the watch knows at the time of a look."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass
class Moment:
    """Of one look; rounds are those that a thing's age is counted in."""

    step: int
    boundaries: Sequence[int]
    """sequence numbers at the ends of the last rounds, rising"""
    fresh: bool
    """an optimizer has stepped and nothing was built since: what is held now is held when the next graph is built"""
    after: int
    """which of the optimizers stepped last"""
    optimizers: frozenset[int]
    """those that step, in turn"""
    evaluating: bool
    """graphs are built and nothing walks them"""
    last_walk: int
    """sequence number at the last backward"""
    kept_rounds: int
    """rounds in a row of which each one's graph is still alive"""
    ages_are_sure: bool
    """no backward was differentiable on a GPU: sequence numbers are a thread's own, and the nodes of such a backward, which
    autograd's threads make, look old; that old graphs are alive must then be known from the sentinels as well, and that
    something is new from what was there before it"""
    old_graphs: int
    """of earlier rounds' backwards that are alive, as far as the sentinels tell"""
    retained: tuple[str, int, str] | None
    """file, line and function of the last backward(retain_graph=True)"""
    per: str = "step"
    """what ends a round, of series.ROUNDS"""
    given_elements: int = 0
    """of what the model was given last; 0: not known"""
    epoch_ended: int = 0
    """the round in which the last one did; 0: none has, as far as is known"""
    ends_epoch: bool = False
    """it has ended just now"""
    evaluated: int = 0
    """batches that are done of an evaluation without gradients; 0: there is none"""
    whole: bool = False
    """the look left nothing out: what it has not seen is not there"""


def rounds_since(number: int, boundaries: Sequence[int]) -> int:
    """How many rounds have ended since the operation of that sequence number."""
    return len(boundaries) - bisect.bisect_right(boundaries, number)
