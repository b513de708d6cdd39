"""Reserved memory is far above what was allocated: what expandable segments would have reserved.

Condition: at its highest, reserved is 10 % (and 64 MiB) above the highest allocated, and expandable segments are not in use.
Arithmetic: the recorded history replayed under ``expandable_segments:True`` (docs/fragmentation.md); where the replay has a band,
its upper end counts.
"""

from __future__ import annotations

from typing import Final

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, Facts
from vramscope_server.analysis.history.trace import reserved_after
from vramscope_server.analysis.quantities import amount
from vramscope_server.analysis.whatif.recommendation import risk_of
from vramscope_server.analysis.whatif.sweep import predict

CONF: Final = "expandable_segments:True"
SOURCE: Final = "docs/fragmentation.md"
LEAST_FRACTION: Final = 0.1
LEAST_BYTES: Final = 64 << 20


def advise(facts: Facts) -> Advice | None:
    """Advice, or None where little is lost, or another allocator was at work."""
    trace = facts.trace
    reserved = int(reserved_after(trace).max())
    lost = reserved - facts.peak_bytes
    settings, _ = trace.parsed_settings
    if (
        lost < max(LEAST_BYTES, LEAST_FRACTION * facts.peak_bytes)
        or settings.expandable_segments
        or trace.backend != "native"
    ):
        return None
    told = predict(trace, CONF)
    highest = max([told.peak_reserved_bytes, *(told.band or ())])
    saves = reserved - highest
    if saves < WORTH_FRACTION * reserved or told.out_of_memory:
        return None
    risk = risk_of(type(settings).parse(CONF)).words
    return Advice(
        rule="fragmentation",
        sentence=(
            f"{amount(reserved)} are reserved where {amount(facts.peak_bytes)} are allocated at most. Replayed with "
            f"PYTORCH_CUDA_ALLOC_CONF={CONF}, {amount(saves)} less would be reserved. {risk}".strip()
        ),
        saves_bytes=saves,
        evidence={
            "of": "reserved",
            "peak_reserved_bytes": reserved,
            "predicted_bytes": told.peak_reserved_bytes,
            "conf": CONF,
        },
        source=SOURCE,
    )
