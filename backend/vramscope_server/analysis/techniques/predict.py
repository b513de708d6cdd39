"""Predicts the peak of the recorded step with other techniques, alone and combined.

Without requested plans, a plan is listed if each of its techniques lowers the peak by 1 % or more; otherwise a simpler plan
does the same. docs/anatomy.md compares predictions with trainings that ran with these plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vramscope.oom_diagnosis.estimate import FRAGMENTATION_MARGIN
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules import batch, checkpointing, evaluation
from vramscope_server.analysis.techniques import changes as techniques
from vramscope_server.analysis.techniques.memory_curve import CurveChange, MemoryCurve, recorded_curve
from vramscope_server.analysis.techniques.plan import TrainingPlan, all_plans

WORTH_FRACTION: Final = 0.01
"""Minimum reduction by each technique of a plan, as a share of the recorded peak."""


@dataclass(frozen=True)
class PlanPrediction:
    """Predicted memory of a plan."""

    plan: TrainingPlan
    peak_allocated_bytes: int | None
    """None if one of the techniques cannot be predicted. The notes have the reason."""
    rows: int | None
    """Rows per micro-batch; None if unknown, or not divisible."""
    rows_that_fit: int | None
    """Rows per micro-batch that fit on the recorded device, minus 5 % for fragmentation; None if unknown."""


@dataclass(frozen=True)
class Predictions:
    """Predictions for other plans of a recorded step."""

    step: int | None
    """Step with the recording's peak; None for an empty recording, and where no step is known."""
    rows: list[PlanPrediction]
    """The recorded plan first, then the requested plans in their order, or other plans by falling peak."""
    furthest_rows: int | None
    """Upper limit of ``rows_that_fit``. Larger batches were not measured."""
    notes: list[str]
    """Checkpointed blocks, and techniques that cannot be predicted, with the reason."""


def predict(facts: StepFacts, requested: Sequence[TrainingPlan] = ()) -> Predictions:
    """Predict the requested plans, or all useful ones. 10 ms for 20,000 events (an LSTM), more per choice of blocks."""
    if not len(facts.trace.events):
        return Predictions(None, [], None, ["This recording has no events."])
    if facts.peak_phase not in ("data", "forward", "backward", "optimizer"):
        where = "in an evaluation" if facts.peak_phase == "eval" else "outside of known training phases"
        step = facts.step if facts.step >= 0 else None
        return Predictions(step, [], None, [f"The peak is {where}: other techniques cannot be predicted."])
    current = recorded_curve(facts)
    changes = {
        "gradient_accumulation": techniques.accumulation(facts),
        "gradient_checkpointing": techniques.checkpointed_blocks(facts, current),
        "optimizer_8bit": techniques.eight_bit_state(facts),
        "no_foreach": techniques.one_parameter_at_a_time(facts),
    }
    total_rows, available = batch.rows_of(facts), batch.available_bytes(facts)
    furthest = None if total_rows is None else batch.FURTHEST * total_rows

    def row(plan: TrainingPlan) -> PlanPrediction:
        parts = plan.gradient_accumulation
        rows = None if total_rows is None or total_rows % parts else total_rows // parts
        curve: MemoryCurve | None = MemoryCurve(current.constant_bytes, current.scaled_bytes, parts)
        for name in plan.used():
            change = changes[name]
            curve = None if curve is None or change is None else curve.with_change(change)
        if curve is None or parts > (total_rows or parts):
            return PlanPrediction(plan, None, rows, None)
        fit = (
            None
            if total_rows is None or available is None
            else curve.rows_that_fit(total_rows, int(available / (1 + FRAGMENTATION_MARGIN)))
        )
        return PlanPrediction(
            plan, curve.peak_bytes, rows, None if fit is None or furthest is None else min(fit, furthest)
        )

    rows = (
        [row(TrainingPlan()), *map(row, requested)]
        if requested
        else _useful(list(map(row, all_plans())), facts.peak_bytes)
    )
    return Predictions(facts.step, rows, furthest, _notes(facts, changes))


def _useful(rows: list[PlanPrediction], peak_bytes: int) -> list[PlanPrediction]:
    peaks = {row.plan: row.peak_allocated_bytes for row in rows if row.peak_allocated_bytes is not None}
    least = WORTH_FRACTION * peak_bytes
    useful = [plan for plan, peak in peaks.items() if all(peak <= peaks[simpler] - least for simpler in plan.simpler())]
    return sorted((row for row in rows if row.plan in useful), key=lambda row: (-peaks[row.plan], row.plan))


def _notes(facts: StepFacts, changes: dict[str, CurveChange | None]) -> list[str]:
    notes = []
    if blocks := changes["gradient_checkpointing"]:
        notes.append(f"Checkpointing: {blocks.of}, each on its own.")
    elif checkpointing.is_recomputing(facts):
        notes.append("Checkpointing: backward already recomputes activations.")
    elif not facts.trace.modules:
        notes.append("Checkpointing: cannot be predicted without recorded modules.")
    else:
        notes.append("Checkpointing: the model has no repeated blocks whose activations lower the peak.")
    if changes["gradient_accumulation"] is None:
        why = (
            "the loss compares samples within a batch, so splitting the batch changes the result"
            if techniques.compares_rows(facts)
            else "cannot be predicted, because no gradients are known in this step"
        )
        notes.append(f"Accumulation: {why}.")
    if changes["optimizer_8bit"] is None:
        notes.append("8-bit state: no 32-bit optimizer state is known.")
    if changes["no_foreach"] is None:
        notes.append("foreach=False: not applicable to this optimizer.")
    if evaluation.advise(facts) is not None:
        notes.append(
            "The peak includes a forward pass without backward (see the advice). Its rows count as rows of the batch."
        )
    if any(one["kind"] == "distributed" for one in facts.techniques):
        notes.append("Several ranks: the prediction is for one of them, and was not validated on such trainings.")
    return notes
