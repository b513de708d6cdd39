"""All advice rules, applied to a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.advice.rules import (
    autocast_cache,
    batch,
    checkpointing,
    evaluation,
    evaluation_batch,
    foreach,
    fragmentation,
    kept_copies,
    late_clear,
    loss_head,
    optimizer_state,
    retries,
    waits_for_data,
    weight_copies,
)

Rule = Callable[[StepFacts], Advice | None]

RULES: Final[tuple[Rule, ...]] = (
    loss_head.advise,
    checkpointing.advise,
    foreach.advise,
    late_clear.advise,
    evaluation.advise,
    evaluation_batch.advise,
    optimizer_state.advise,
    weight_copies.advise,
    autocast_cache.advise,
    kept_copies.advise,
    fragmentation.advise,
    retries.advise,
    waits_for_data.advise,
    batch.advise,
)


def advise(facts: StepFacts) -> list[Advice]:
    """Advice of all rules: advice on the run's peak first, then most bytes, then most time. Empty for a trace without events."""
    if not len(facts.recorded.events):
        return []
    return ordered(advice for rule in RULES if (advice := rule(facts)) is not None)


def ordered(found: Iterable[Advice]) -> list[Advice]:
    """Advice in the order of ``advise``."""
    return sorted(
        found,
        key=lambda advice: (
            advice.evidence.get("of") != "run",
            -(advice.saves_bytes or 0),
            -(advice.seconds or 0.0),
            advice.rule,
        ),
    )
