"""The optimizer's foreach temporaries make the peak.

Condition: the step's peak lies in the optimizer, and temporaries that the optimizer made are part of it.
Arithmetic: without them the step's peak is what remains, with room for the temporaries of one parameter at a time: twice the
largest (a for-loop AdamW takes the root of one state and divides it). ``fused=True`` needs not even that.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts, Whole
from vramscope_server.analysis.units import amount, percent

SOURCE: Final = "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html"
"""its note on foreach: about the size of the parameters more at the peak"""
COPIES: Final = 2
"""of one parameter, that a for-loop optimizer has at a time"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where the peak is elsewhere or the temporaries are few."""
    if facts.peak_phase != "optimizer":
        return None
    temporaries = facts.is_of("temporaries") & facts.born_in("optimizer")
    at_peak = facts.at_peak[temporaries[facts.at_peak]]
    held = facts.bytes_of(at_peak)
    after = facts.peak_after(one_at_a_time(facts))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="foreach",
        sentence=(
            f"The peak is in the optimizer's step: its foreach temporaries are {amount(held)} of {amount(facts.peak_bytes)} "
            f"({percent(held / facts.peak_bytes)}). With foreach=False or fused=True the peak falls by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={
            "temporaries_bytes": held,
            "temporaries": len(at_peak),
            "one_parameter_bytes": one_parameter_bytes(facts),
            "peak_after_bytes": after,
        },
        source=SOURCE,
    )


def one_parameter_bytes(facts: StepFacts) -> int:
    """Room for the temporaries of one parameter at a time; 0: no parameters are known."""
    owned = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    return COPIES * int(facts.trace.lives.size_bytes[owned].max(initial=0))


def one_at_a_time(facts: StepFacts) -> Whole:
    """What allocated bytes change by, after each event, if the optimizer at the peak stepped parameter by parameter; all 0 where it
    does, or the peak is elsewhere."""
    at_peak = (facts.is_of("temporaries") & facts.born_in("optimizer"))[facts.at_peak].sum()
    if facts.peak_phase != "optimizer" or at_peak <= COPIES:
        return np.zeros(len(facts.allocated), np.int64)
    return changes(facts)


def changes(facts: StepFacts) -> Whole:
    """What allocated bytes change by, after each event, if the optimizers of the peak's step stepped parameter by parameter,
    wherever the peak is; all 0 where no parameters are known."""
    one = one_parameter_bytes(facts)
    room = np.zeros(len(facts.allocated), np.int64)
    if not one:
        return room
    # Room for one parameter's while the optimizer ran, none elsewhere.
    first, last = facts.span
    stepping = facts.trace.events.phase[first : last + 1] == PHASES.index("optimizer")
    room[first + 1 : last + 2][stepping] = one
    return facts.without(facts.is_of("temporaries") & facts.born_in("optimizer") & facts.in_step()) + room
