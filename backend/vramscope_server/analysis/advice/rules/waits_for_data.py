"""Advice for steps that wait for their data.

Condition: in a profile, the time between a step's end and the next forward (loading, copying, clearing gradients) is a fifth
or more of the total.
Calculation: this share, minus the time for clearing gradients. It is the maximum that prefetching can save.
"""

from __future__ import annotations

from typing import Final

from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.number_format import duration, percent
from vramscope_server.analysis.profile.tables import Table

SOURCE: Final = "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading"
MIN_SHARE: Final = 0.2
CLEARING: Final = "Optimizer.zero_grad#"
"""Prefix of its name in a profile."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if the share is smaller, or phases are unknown."""
    profile = facts.profile
    if profile is None or not profile.phases or not profile.span_ns or not profile.steps:
        return None
    operations = Table.of(profile, "operations")
    clearing_ns = sum(
        int(took)
        for name, took in zip(operations.names, operations.columns["cpu_ns"].tolist(), strict=True)
        if name.startswith(CLEARING)
    )
    waiting_ns = max(0, profile.phases.get("data", 0) - clearing_ns)
    share = waiting_ns / profile.span_ns
    if share < MIN_SHARE:
        return None
    seconds = waiting_ns / 1e9 / profile.steps
    return Advice(
        rule="waits_for_data",
        sentence=(
            f"{percent(share)} of a step ({duration(seconds)}) is spent before its forward pass, waiting for data. "
            "DataLoader(num_workers=.., prefetch_factor=..) prefetches batches; pin_memory=True with "
            ".to(device, non_blocking=True) overlaps copies with computation."
        ),
        saves_bytes=None,
        seconds=seconds,
        evidence={
            "data_seconds": seconds,
            "share": share,
            "clearing_ns": clearing_ns,
            "first_step": profile.first_step,
        },
        source=SOURCE,
    )
