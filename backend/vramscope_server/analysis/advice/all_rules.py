"""All rules, and what they say of a recording: most bytes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.advice.rules import (
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
    kept_copies.advise,
    fragmentation.advise,
    retries.advise,
    waits_for_data.advise,
    batch.advise,
)


def advise(facts: StepFacts) -> list[Advice]:
    """What each rule has to say: of the run's peak, then most bytes first, then most time; nothing of a trace without events."""
    if not len(facts.recorded.events):
        return []
    said = [advice for rule in RULES if (advice := rule(facts)) is not None]
    return sorted(
        said,
        key=lambda advice: (
            advice.evidence.get("of") != "run",
            -(advice.saves_bytes or 0),
            -(advice.seconds or 0.0),
            advice.rule,
        ),
    )
