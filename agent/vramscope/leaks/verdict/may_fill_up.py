"""Whether growth may yet end by itself, so that it is not reported as a leak at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from vramscope.leaks.holders.holder import Holder
from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.history import Observation, gains_elements, gains_keys_lately, keys_recur
from vramscope.leaks.verdict.periodic import AccumulationCycle
from vramscope.leaks.verdict.scan_context import ScanContext

FAR: Final = 8
"""A limit of more times the elements so far counts as none."""


def may_have_a_bound(group: HeldMemory, cycle: AccumulationCycle, scans: Sequence[Observation]) -> bool:
    """True where growth may end by itself: each key comes once, or the code limits the number or puts new elements in the place of
    old ones. (Whole models are not kept on purpose.)"""
    may = (
        group.holder.limited
        or is_below_limit(group.holder)
        or group.holder.drained
        or (group.holder.keyed and gains_elements(scans))
    )
    return may and cycle.after is None and not group.models


def is_no_proof(holder: Holder, scans: Sequence[Observation]) -> bool:
    """True if growth until the end of the run does not show that it would have gone on.

    Either the code looks keys up before it adds them, and some came again. (Keys limit nothing where no new ones come and what
    grows is below them, such as the lists of a log.) Or the code takes elements out when there are more than it has so far.
    """
    return (holder.looked_up and gains_keys_lately(scans) and keys_recur(scans)) or is_below_limit(holder)


def is_below_limit(holder: Holder) -> bool:
    """True if the code takes elements out above a number that is not much larger than their number, and was not exceeded."""
    size = holder.size or 0
    return holder.limit is not None and size - 1 <= holder.limit <= FAR * size


def replaces_values(holder: Holder, before: Sequence[Observation], now: Observation) -> bool:
    """True if tensors under keys were replaced since the last scan: no code removes from the container, and it has no fewer."""
    if not before or not holder.keyed or holder.drained:
        return False
    return now.tensors == now.elements >= before[-1].elements == before[-1].tensors


def may_be_for_a_training(now: Observation, context: ScanContext) -> bool:
    """True where nothing has trained yet: features that a frozen model computes may be the data of a training to come."""
    return context.per != "step" and not context.evaluating and now.iteration < POLICY.inference_patience


def waits_to_fill(holder: Holder, started: int, now: Observation) -> bool:
    """True while what may have a bound is not reported yet. (A container whose growth slows down is not reported at all.)"""
    return now.iteration - started < POLICY.filling_iterations or is_below_limit(holder)
