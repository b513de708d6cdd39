"""In which way a run was trained, against the baseline that it was predicted from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vramscope_server.analysis.comparison.labels import chips_of, difference
from vramscope_server.analysis.techniques.plan import TrainingPlan

PREDICTED: Final = {"gradient_accumulation", "gradient_checkpointing", "optimizer_8bit"}
EIGHT: Final = 8
ALL_FRACTION: Final = 0.98
"""of the state's elements in 8 bits: less is another optimizer than the one that is predicted (transformers' Trainer leaves out
embeddings)"""

Techniques = Sequence[Mapping[str, Any]]


def plan_between(base: Techniques | None, own: Techniques | None) -> TrainingPlan | None:
    """None: they are alike, they differ in something that is not predicted, or it is not known."""
    chips, of_base = chips_of(own), chips_of(base)
    if chips is None or of_base is None or base is None or own is None:
        return None
    differing = difference(chips, of_base).keys()
    if not differing or not differing <= PREDICTED or differing & of_base.keys() - {"gradient_accumulation"}:
        return None
    steps, of_base_steps = _micro_steps(own), _micro_steps(base)
    parts, rest = divmod(steps, of_base_steps)
    rows, of_one = _whole(base, "batch", "batch_size"), _whole(own, "batch", "batch_size")
    if rows is None or of_one is None or rest or parts < 1 or rows != parts * of_one:
        return None  # it had another number of rows in a step, or less accumulation, or not as many times more
    if ("gradient_accumulation" in differing) != (parts > 1):
        return None
    covered, bits = (_detail(own, "optimizer_8bit", name) for name in ("covered_fraction", "bits"))
    if "optimizer_8bit" in differing and (bits != EIGHT or covered is None or covered < ALL_FRACTION):
        return None
    return TrainingPlan(parts, "gradient_checkpointing" in differing, "optimizer_8bit" in differing)


def _micro_steps(techniques: Techniques) -> int:
    return _whole(techniques, "gradient_accumulation", "micro_steps") or 1


def _whole(techniques: Techniques, kind: str, name: str) -> int | None:
    value = _detail(techniques, kind, name)
    return value if isinstance(value, int) and value >= 1 else None


def _detail(techniques: Techniques, kind: str, name: str) -> float | None:
    value = next((one.get("detail", {}).get(name) for one in techniques if one["kind"] == kind), None)
    return value if isinstance(value, int | float) else None
