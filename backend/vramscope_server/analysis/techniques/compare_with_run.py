"""Training plan of a run, relative to its baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramscope_server.analysis.comparison.labels import chips_of, difference
from vramscope_server.analysis.techniques.plan import TrainingPlan

PREDICTED: Final = {"gradient_accumulation", "gradient_checkpointing", "optimizer_8bit"}
EIGHT: Final = 8
ALL_FRACTION: Final = 0.98
"""Minimum share of the state's elements in 8 bits. Less is another optimizer than the predicted one (transformers' Trainer
keeps embeddings in 32 bits)."""

Techniques = Sequence[Mapping[str, Any]]


def plan_between(base: Techniques | None, own: Techniques | None) -> TrainingPlan | None:
    """Plan by which a run differs from its baseline; None if there is no difference, an unpredicted one, or it is unknown."""
    own_chips, base_chips = chips_of(own), chips_of(base)
    if own_chips is None or base_chips is None or base is None or own is None:
        return None
    differing = difference(own_chips, base_chips).keys()
    if not differing or not differing <= PREDICTED or differing & base_chips.keys() - {"gradient_accumulation"}:
        return None
    parts, rest = divmod(_micro_steps(own), _micro_steps(base))
    base_rows, own_rows = _positive_int(base, "batch", "batch_size"), _positive_int(own, "batch", "batch_size")
    if base_rows is None or own_rows is None or rest or parts < 1 or base_rows != parts * own_rows:
        return None  # another number of rows per step, less accumulation, or no whole multiple of it
    if ("gradient_accumulation" in differing) != (parts > 1):
        return None
    covered, bits = (_detail(own, "optimizer_8bit", name) for name in ("covered_fraction", "bits"))
    if "optimizer_8bit" in differing and (bits != EIGHT or covered is None or covered < ALL_FRACTION):
        return None
    return TrainingPlan(parts, "gradient_checkpointing" in differing, "optimizer_8bit" in differing)


def _micro_steps(techniques: Techniques) -> int:
    return _positive_int(techniques, "gradient_accumulation", "micro_steps") or 1


def _positive_int(techniques: Techniques, kind: str, name: str) -> int | None:
    value = _detail(techniques, kind, name)
    return value if isinstance(value, int) and value >= 1 else None


def _detail(techniques: Techniques, kind: str, name: str) -> float | None:
    value = next((one.get("detail", {}).get(name) for one in techniques if one["kind"] == kind), None)
    return value if isinstance(value, int | float) else None
