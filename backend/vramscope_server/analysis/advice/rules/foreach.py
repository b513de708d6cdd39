"""Advice for foreach temporaries of the optimizer at the peak.

Condition: the step's peak is in the optimizer, and temporaries of the optimizer are part of it.
Calculation: the step's peak without them, plus the temporaries of one parameter at a time: twice the largest parameter (a
for-loop AdamW takes the root of one state and divides it). ``fused=True`` needs even less.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount, percent

SOURCE: Final = "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html"
"""Its note on foreach: the peak is higher by about the size of the parameters."""
COPIES: Final = 2
"""Temporaries of one parameter's size that a for-loop optimizer has at a time."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if the peak is elsewhere, or the temporaries are small."""
    if facts.peak_phase != "optimizer":
        return None
    temporaries = facts.is_of("temporaries") & facts.allocated_in("optimizer")
    at_peak = facts.at_peak[temporaries[facts.at_peak]]
    temporary = facts.bytes_of(at_peak)
    after = facts.peak_after(one_at_a_time(facts))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="foreach",
        sentence=(
            f"The peak is in the optimizer step. Its foreach temporaries are {amount(temporary)} of {amount(facts.peak_bytes)} "
            f"({percent(temporary / facts.peak_bytes)}). With foreach=False or fused=True the peak falls by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={
            "temporaries_bytes": temporary,
            "temporaries": len(at_peak),
            "one_parameter_bytes": one_parameter_bytes(facts),
            "peak_after_bytes": after,
        },
        source=SOURCE,
    )


def one_parameter_bytes(facts: StepFacts) -> int:
    """Bytes of the temporaries of one parameter at a time; 0 if no parameters are known."""
    owned = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    return COPIES * int(facts.trace.lives.size_bytes[owned].max(initial=0))


def one_at_a_time(facts: StepFacts) -> IntArray:
    """Change of allocated bytes after each event if the optimizer at the peak steps one parameter at a time.

    All 0 if it does already, or the peak is elsewhere.
    """
    at_peak = (facts.is_of("temporaries") & facts.allocated_in("optimizer"))[facts.at_peak].sum()
    if facts.peak_phase != "optimizer" or at_peak <= COPIES:
        return np.zeros(len(facts.allocated), np.int64)
    return changes(facts)


def changes(facts: StepFacts) -> IntArray:
    """Change of allocated bytes after each event if the optimizers of the peak's step step one parameter at a time.

    The peak may be anywhere. All 0 if no parameters are known.
    """
    one = one_parameter_bytes(facts)
    added = np.zeros(len(facts.allocated), np.int64)
    if not one:
        return added
    # The temporaries of one parameter exist while the optimizer runs.
    first, last = facts.span
    stepping = facts.trace.events.phase[first : last + 1] == PHASES.index("optimizer")
    added[first + 1 : last + 2][stepping] = one
    return facts.without(facts.is_of("temporaries") & facts.allocated_in("optimizer") & facts.in_step()) + added
