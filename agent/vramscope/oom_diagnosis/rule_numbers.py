"""Numbers that several rules for the cause of an out-of-memory error need."""

from __future__ import annotations

from vramscope.oom_diagnosis.demand import outgrew_bytes
from vramscope.oom_diagnosis.estimate import FRAGMENTATION_MARGIN, Estimate
from vramscope.oom_diagnosis.facts import Facts


def likely_bytes(facts: Facts, estimate: Estimate | None) -> int | None:
    return facts.low_bytes if estimate is None else estimate.likely_bytes


def numbers(facts: Facts, estimate: Estimate | None) -> tuple[int, int, int]:
    """Shortfall, available and likely bytes."""
    return facts.shortfall_bytes or 0, facts.available_bytes or 0, likely_bytes(facts, estimate) or 0


def lacking_bytes(facts: Facts, estimate: Estimate | None) -> int:
    """With less, this request would have been met, and hardly the rest of the step."""
    return max(facts.shortfall_bytes or 0, outgrew_bytes(facts, estimate))


def fits_in_one_block(facts: Facts, estimate: Estimate | None) -> bool:
    """Whether the free blocks would have been enough for the request and the step, had they been one block."""
    _, available, likely = numbers(facts, estimate)
    least = max(lacking_bytes(facts, estimate), FRAGMENTATION_MARGIN * available)  # so much is free in any training
    return (facts.idle_bytes or 0) >= least and likely <= available and not facts.expandable


def wanted_more_bytes(facts: Facts, likely: int) -> int:
    """Bytes that this step needs in addition to the first ones, without growth: because of a larger batch, say."""
    if facts.peak_at_first_bytes is None or facts.growth_bytes is None:
        return 0
    return likely - facts.growth_bytes - facts.peak_at_first_bytes


def update_bytes(facts: Facts) -> int:
    """Copies that ``foreach`` makes of all that it updates, where the optimizer failed."""
    return (facts.trainable_bytes or 0) if facts.phase == "optimizer" and facts.update in ("foreach", None) else 0


def is_outside_step(facts: Facts) -> bool:
    """Whether the request is no part of a step. What computes with tensors after a step is a part of the next one."""
    outside = facts.phase in ("other", "data", None) and facts.thread is None
    return outside and not (facts.computes and facts.step)


def weights_bytes(facts: Facts) -> int:
    """Weights with their gradients and the copies of these."""
    return (facts.weights_bytes or 0) + facts.full_gradients_bytes + facts.bucket_bytes
