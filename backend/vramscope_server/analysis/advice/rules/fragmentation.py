"""Advice to use expandable segments if reserved memory is far above allocated memory.

Condition: peak reserved is 10 % and 64 MiB above peak allocated, and expandable segments are off.
Calculation: a replay of the recording under ``expandable_segments:True``. If a step outside of the recording allocated more,
the replayed bytes are scaled up. If the recording starts mid-run, cached memory of earlier steps is not in the replay, and
the saving is called likely.
Error: measured on trainings with steps of many sizes, in docs/fragmentation.md.
"""

from __future__ import annotations

from typing import Final

from vramscope.protocol.gpu_backend import allocator_variable
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.trace.trace import reserved_after
from vramscope_server.analysis.whatif.recommendation import risk_of
from vramscope_server.analysis.whatif.sweep import predict
from vramscope_server.analysis.whatif.window_start import beginning_of

CONF: Final = "expandable_segments:True"
SOURCE: Final = "docs/fragmentation.md"
MIN_FRACTION: Final = 0.1
MIN_BYTES: Final = 64 << 20
AS_HIGH: Final = 0.98
"""Share of the run's highest step from which on a recorded step counts as equally high."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if little memory is lost, or the run used another allocator."""
    trace = facts.trace
    reserved, allocated = int(reserved_after(trace).max()), max(facts.peak_bytes, facts.run_peak_bytes or 0)
    settings, _ = trace.parsed_settings
    if (
        reserved - allocated < max(MIN_BYTES, MIN_FRACTION * allocated)
        or not facts.peak_bytes
        or settings.expandable_segments
        or trace.backend != "native"
    ):
        return None
    prediction = predict(trace, CONF)
    # Each pool is one address range then: reserved memory depends on the highest step, not on the steps before.
    higher = facts.peak_bytes < AS_HIGH * allocated
    late = len(trace.beginning.segments) > 0 and beginning_of(trace) is None
    # For a complete recording, use the upper end of the band.
    replayed = prediction.peak_reserved_bytes
    if not late and prediction.band is not None:
        replayed = max(replayed, *prediction.band)
    needs = replayed * allocated // facts.peak_bytes if higher else replayed
    likely = higher or late
    if late and prediction.band is not None and reserved - needs < MIN_FRACTION * reserved:
        needs, likely = max(needs, *prediction.band), higher
    saves = reserved - needs
    if saves < (MIN_FRACTION if likely else WORTH_FRACTION) * reserved or prediction.out_of_memory:
        return None
    return Advice(
        rule="fragmentation",
        sentence=" ".join(
            filter(
                None,
                (
                    f"Peak reserved is {amount(reserved)}, peak allocated {amount(allocated)}.",
                    f"In a replay with {allocator_variable(trace.torch)}={CONF}",
                    f"the recorded steps reserve {amount(replayed)}. Scaled to the run's highest step this is {amount(needs)}, "
                    f"about {amount(saves)} less."
                    if higher
                    else f"peak reserved falls by {amount(saves)}.",
                    "Steps before the recording are not in the replay." if likely and late else "",
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
            "band": prediction.band,
            "at_most": likely,
            "conf": CONF,
        },
        source=SOURCE,
    )
