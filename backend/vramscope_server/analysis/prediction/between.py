"""In which way a run was trained, against the baseline that it was predicted from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramscope_server.analysis.comparison.naming import chips_of, difference
from vramscope_server.analysis.prediction.way import Way

PREDICTED: Final = {"gradient_accumulation", "gradient_checkpointing", "optimizer_8bit"}
EIGHT: Final = 8
ALL_FRACTION: Final = 0.98
"""of the state's elements in 8 bits: less is another optimizer than the one that is predicted (transformers' Trainer leaves out
embeddings)"""

Techniques = Sequence[Mapping[str, Any]]


def way_between(base: Techniques | None, own: Techniques | None) -> Way | None:
    """None: they are alike, they differ in something that is not predicted, or it is not known."""
    chips, of_base = chips_of(own), chips_of(base)
    if chips is None or of_base is None or base is None or own is None:
        return None
    differing = difference(chips, of_base).keys()
    if not differing or not differing <= PREDICTED or differing & of_base.keys() - {"gradient_accumulation"}:
        return None
    parts = _micro_steps(own) / _micro_steps(base)
    rows, of_one = _detail(base, "batch", "batch_size"), _detail(own, "batch", "batch_size")
    if rows is None or of_one is None or parts < 1 or rows != parts * of_one:
        return None  # it had another number of rows in a step, or less accumulation
    covered, bits = (_detail(own, "optimizer_8bit", name) for name in ("covered_fraction", "bits"))
    if "optimizer_8bit" in differing and (bits != EIGHT or covered is None or covered < ALL_FRACTION):
        return None
    return Way(int(parts), "gradient_checkpointing" in differing, "optimizer_8bit" in differing)


def _micro_steps(techniques: Techniques) -> int:
    told = _detail(techniques, "gradient_accumulation", "micro_steps")
    return int(told) if told else 1


def _detail(techniques: Techniques, kind: str, name: str) -> float | None:
    value = next((one.get("detail", {}).get(name) for one in techniques if one["kind"] == kind), None)
    return value if isinstance(value, int | float) else None
