"""The device waits for Python to launch work.

Condition: in a profile in which kernels were seen, at least one of them ran in less than half of the time.
Arithmetic: a step cannot get shorter than its kernels: what is left of it, as it was before the profile slowed it down, is the most
that can be won. No bytes: what it costs and gives in memory depends on the remedy.
Tested on profiles that are made up: device times need CUPTI, which the emulated GPU does not have. Never seen on a real card.
"""

from __future__ import annotations

from typing import Final

from vramscope_server.analysis.advice.facts import Advice, Facts
from vramscope_server.analysis.quantities import duration, percent

SOURCE: Final = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
LEAST_IDLE: Final = 0.5


def advise(facts: Facts) -> Advice | None:
    """Advice, or None where the device works most of the time, or its times are unknown."""
    profile = facts.profile
    if profile is None or not profile.device_time or profile.device_busy_ns is None or not profile.steps:
        return None
    busy_s = profile.device_busy_ns / 1e9 / profile.steps
    # The profile itself makes Python slower, and the kernels not.
    step_s = profile.cost.step_before or profile.span_ns / 1e9 / profile.steps
    idle = 1 - busy_s / step_s if step_s else 0.0
    if idle < LEAST_IDLE:
        return None
    return Advice(
        rule="launch_bound",
        sentence=(
            f"The device works {duration(busy_s)} of a step's {duration(step_s)}: {percent(idle)} of the time it waits for Python "
            "to launch work. torch.compile, CUDA graphs, a fused optimizer or a larger batch give it more to do at a time; a step "
            f"could be up to {duration(step_s - busy_s)} shorter."
        ),
        saves_bytes=None,
        evidence={
            "device_busy_seconds": busy_s,
            "step_seconds": step_s,
            "at_most_seconds": step_s - busy_s,
            "first_step": profile.first_step,
        },
        source=SOURCE,
    )
