"""Advice to change the allocator settings, where the sweep of a recording recommends it.

Condition: ``Sweep.recommended`` (docs/fragmentation.md), which the Fragmentation page and ``vramscope whatif`` show too.
Calculation: the smallest device under the recorded settings minus that under the recommended ones.
"""

from __future__ import annotations

from typing import Final

from vramscope_server.analysis.advice.facts import Advice, StepFacts

SOURCE: Final = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if the recorded settings are to be kept, or no sweep was made."""
    row = None if facts.sweep is None else facts.sweep.recommended
    if facts.sweep is None or row is None:
        return None
    recorded, recommendation = facts.sweep.rows[0], facts.sweep.recommendation
    change = f"Set {recommendation.variable}={row.conf}." if row.conf else f"Unset {recommendation.variable}."
    return Advice(
        rule="fragmentation",
        sentence=f"{change} {recommendation.words}",
        saves_bytes=row.saved_bytes if row.saved_bytes and row.saved_bytes > 0 else None,
        evidence={
            "of": "device",
            "conf": row.conf,
            "variable": recommendation.variable,
            "smallest_device_bytes": recorded.smallest_device_bytes,
            "predicted_bytes": row.smallest_device_bytes,
            "out_of_memory": recorded.out_of_memory,
        },
        source=row.risk.source or SOURCE,
    )
