"""Steps wait for their data.

Condition: in a profile, what comes between a step's end and the next forward (loading, copying, clearing gradients) takes a fifth
of the time.
Arithmetic: that share, less what clearing gradients takes: the most that loading ahead can win.
"""

from __future__ import annotations

from typing import Final

from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.profile.tables import Table
from vramscope_server.analysis.units import duration, percent

SOURCE: Final = "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading"
LEAST_SHARE: Final = 0.2
CLEARING: Final = "Optimizer.zero_grad#"
"""what PyTorch calls it in a profile"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where it is less, or the phases are unknown."""
    profile = facts.profile
    if profile is None or not profile.phases or not profile.span_ns or not profile.steps:
        return None
    operations = Table.of(profile, "operations")
    clearing_ns = sum(
        int(took)
        for name, took in zip(operations.names, operations.columns["cpu_ns"].tolist(), strict=True)
        if name.startswith(CLEARING)
    )
    waits_ns = max(0, profile.phases.get("data", 0) - clearing_ns)
    share = waits_ns / profile.span_ns
    if share < LEAST_SHARE:
        return None
    seconds = waits_ns / 1e9 / profile.steps
    return Advice(
        rule="waits_for_data",
        sentence=(
            f"{percent(share)} of a step ({duration(seconds)}) pass before its forward begins: it waits for its data. "
            "DataLoader(num_workers=.., prefetch_factor=..) loads ahead; pin_memory=True and .to(device, non_blocking=True) copy "
            "beside the work."
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
