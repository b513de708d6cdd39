"""Reserved memory is far above what was allocated: what expandable segments would have reserved.

Condition: at its highest, reserved is 10 % (and 64 MiB) above the highest allocated, and expandable segments are not in use.
Arithmetic: the recorded history replayed under ``expandable_segments:True``. A recording knows its own steps alone: where another
step of the run allocated more, what the replay reserves is raised as much. Where the recording begins in the middle of the run,
what earlier steps left behind is not in the replay, and the saving is told as one that is likely.
Error: measured on trainings with steps of many sizes, in docs/fragmentation.md.
"""

from __future__ import annotations

from typing import Final

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.trace.trace import reserved_after
from vramscope_server.analysis.units import amount
from vramscope_server.analysis.whatif.recommendation import risk_of
from vramscope_server.analysis.whatif.sweep import predict
from vramscope_server.analysis.whatif.window_start import beginning_of

CONF: Final = "expandable_segments:True"
SOURCE: Final = "docs/fragmentation.md"
LEAST_FRACTION: Final = 0.1
LEAST_BYTES: Final = 64 << 20
AS_HIGH: Final = 0.98
"""of the run's highest step: a recorded one of so much stands for it"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where little is lost, or another allocator was at work."""
    trace = facts.trace
    reserved, allocated = int(reserved_after(trace).max()), max(facts.peak_bytes, facts.run_peak_bytes or 0)
    settings, _ = trace.parsed_settings
    if (
        reserved - allocated < max(LEAST_BYTES, LEAST_FRACTION * allocated)
        or not facts.peak_bytes
        or settings.expandable_segments
        or trace.backend != "native"
    ):
        return None
    told = predict(trace, CONF)
    # Each pool is one range of addresses then: what is reserved follows the highest step, whatever ran before it.
    higher = facts.peak_bytes < AS_HIGH * allocated
    late = len(trace.beginning.segments) > 0 and beginning_of(trace) is None
    # A band around a history that is whole is what it may come to: the most of it is promised.
    replayed = told.peak_reserved_bytes if late or told.band is None else max(told.peak_reserved_bytes, *told.band)
    needs = replayed * allocated // facts.peak_bytes if higher else replayed
    likely = higher or late
    if late and told.band is not None and reserved - needs < LEAST_FRACTION * reserved:
        needs, likely = max(needs, *told.band), higher
    saves = reserved - needs
    if saves < (LEAST_FRACTION if likely else WORTH_FRACTION) * reserved or told.out_of_memory:
        return None
    return Advice(
        rule="fragmentation",
        sentence=" ".join(
            filter(
                None,
                (
                    f"{amount(reserved)} are reserved where {amount(allocated)} are allocated at most.",
                    f"Replayed with PYTORCH_CUDA_ALLOC_CONF={CONF},",
                    f"the recorded steps reserve {amount(replayed)}, and the run's highest one as much more as it "
                    f"allocates, {amount(needs)}: some {amount(saves)} less."
                    if higher
                    else f"{amount(saves)} less would be reserved.",
                    "What ran before the recording is not in the replay." if likely and late else "",
                    risk_of(type(settings).parse(CONF)).words,
                ),
            )
        ),
        saves_bytes=saves,
        evidence={
            "of": "reserved",
            "peak_reserved_bytes": reserved,
            "predicted_bytes": needs,
            "replayed_bytes": replayed,
            "band": told.band,
            "at_most": likely,
            "conf": CONF,
        },
        source=SOURCE,
    )
