"""The optimizer's foreach temporaries make the peak.

Condition: the step's peak lies in the optimizer, and temporaries that the optimizer made are part of it.
Arithmetic: without them the step's peak is what remains, with room for the temporaries of one parameter at a time: twice the
largest (a for-loop AdamW takes the root of one state and divides it). ``fused=True`` needs not even that.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, Facts
from vramscope_server.analysis.quantities import amount, percent

SOURCE: Final = "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html"
"""its note on foreach: about the size of the parameters more at the peak"""
COPIES: Final = 2
"""of one parameter, that a for-loop optimizer has at a time"""


def advise(facts: Facts) -> Advice | None:
    """Advice, or None where the peak is elsewhere or the temporaries are few."""
    if facts.peak_phase != "optimizer":
        return None
    temporaries = facts.is_of("temporaries") & facts.born_in("optimizer")
    at_peak = facts.at_peak[temporaries[facts.at_peak]]
    held = facts.bytes_of(at_peak)
    owned = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    if not held or not len(owned):
        return None
    one_at_a_time = COPIES * int(facts.trace.lives.size_bytes[owned].max())
    if len(at_peak) <= COPIES:
        return None  # it does one parameter at a time already
    # Room for one parameter's while the optimizer ran, none elsewhere.
    within = np.zeros(len(facts.allocated), np.int64)
    spells = facts.spells
    of_peak = spells.of_event == spells.of_event[facts.peak_event]
    within[1:][of_peak] = one_at_a_time
    after = facts.peak_after(facts.without(temporaries) + within)
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
            "one_parameter_bytes": one_at_a_time,
            "peak_after_bytes": after,
        },
        source=SOURCE,
    )
