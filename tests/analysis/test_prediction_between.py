"""Training plan of a run, from its techniques and those of its baseline."""

from __future__ import annotations

from typing import Any

import pytest

from vramscope_server.analysis.techniques.compare_with_run import plan_between
from vramscope_server.analysis.techniques.plan import TrainingPlan


def seen(*kinds: str, rows: int | None = 64, steps: int = 1, **details: dict[str, Any]) -> list[dict[str, Any]]:
    collected = [("optimizer", "AdamW", {}), ("batch", f"batch {rows}", {} if rows is None else {"batch_size": rows})]
    if steps > 1:
        collected.append(("gradient_accumulation", f"accumulation {steps}", {"micro_steps": steps}))
    collected += [(kind, kind, details.get(kind, {})) for kind in kinds]
    return [{"kind": kind, "chip": chip, "observed": "seen", "detail": detail} for kind, chip, detail in collected]


ALL_8BIT = {"optimizer_8bit": {"covered_fraction": 1.0, "bits": 8}}


@pytest.mark.parametrize(
    ("base", "own", "way"),
    [
        (seen(), seen("gradient_checkpointing"), TrainingPlan(1, True)),
        (seen(), seen(rows=16, steps=4), TrainingPlan(4)),
        (seen(rows=32, steps=2), seen(rows=8, steps=8), TrainingPlan(4)),
        (seen(), seen("optimizer_8bit", **ALL_8BIT), TrainingPlan(optimizer_8bit=True)),
        (
            seen(),
            seen("gradient_checkpointing", "optimizer_8bit", rows=32, steps=2, **ALL_8BIT),
            TrainingPlan(2, True, True),
        ),
        (seen("compile"), seen("compile", "gradient_checkpointing"), TrainingPlan(1, True)),
    ],
)
def test_plan_is_the_difference_from_the_baseline(base: Any, own: Any, way: TrainingPlan) -> None:
    assert plan_between(base, own) == way


@pytest.mark.parametrize(
    ("why", "base", "own"),
    [
        ("alike", seen(), seen()),
        ("not known", None, seen()),
        ("not known", seen(), None),
        ("in something that is not predicted", seen(), seen("mixed_precision", "gradient_checkpointing")),
        ("the baseline has more", seen("gradient_checkpointing"), seen()),
        ("the baseline accumulates more", seen(rows=16, steps=4), seen()),
        ("another batch", seen(), seen("gradient_checkpointing", rows=32)),
        ("accumulation with as many rows at a time", seen(), seen(steps=4)),
        ("not as many times more", seen(rows=4, steps=3), seen(rows=3, steps=4)),
        ("not as many times more", seen(rows=10, steps=2), seen(rows=4, steps=5)),
        ("no number of micro-steps", seen(), seen("gradient_accumulation", gradient_accumulation={"micro_steps": 0.5})),
        ("how many rows is not known", seen(rows=None), seen("gradient_checkpointing", rows=None)),
        ("not all state", seen(), seen("optimizer_8bit", optimizer_8bit={"covered_fraction": 0.53, "bits": 8})),
        ("4 bits", seen(), seen("optimizer_8bit", optimizer_8bit={"covered_fraction": 1.0, "bits": 4})),
        ("8 bits with the baseline, too", seen("optimizer_8bit", **ALL_8BIT), seen("optimizer_8bit", **ALL_8BIT)),
    ],
)
def test_unpredictable_differences_have_no_plan(why: str, base: Any, own: Any) -> None:
    assert plan_between(base, own) is None, why
