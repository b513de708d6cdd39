"""Whether growth may yet end by itself, so that it is not reported as a leak at once."""

from __future__ import annotations

from collections.abc import Sequence

from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.history import Observation, gains_elements
from vramscope.leaks.verdict.periodic import AccumulationCycle
from vramscope.leaks.verdict.scan_context import ScanContext


def may_have_a_bound(group: HeldMemory, cycle: AccumulationCycle, scans: Sequence[Observation]) -> bool:
    """True where growth may end by itself: each key comes once, or the code limits the number or puts new elements in the place of
    old ones. (Whole models are not kept on purpose.)"""
    may = group.holder.limited or group.holder.drained or (group.holder.keyed and gains_elements(scans))
    return may and cycle.after is None and not group.models


def may_be_for_a_training(now: Observation, context: ScanContext) -> bool:
    """True where nothing has trained yet: features that a frozen model computes may be the data of a training to come."""
    return context.per != "step" and not context.evaluating and now.iteration < POLICY.inference_patience


def waits_to_fill(started: int, now: Observation) -> bool:
    """True while what may have a bound is not reported yet. (A container whose growth slows down is not reported at all.)"""
    return now.iteration - started < POLICY.filling_iterations
