"""The peak that the recorded step would have in ways that were not tried: techniques alone and together.

When nothing is asked for, a plan is told where each of its techniques lowers the peak by a hundredth, for else a simpler one does
the same. Error: against trainings that were run in these ways, in docs/anatomy.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vramscope.oom_diagnosis.demand import PIECES
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules import batch, checkpointing, evaluation
from vramscope_server.analysis.techniques import changes as techniques
from vramscope_server.analysis.techniques.memory_curve import Change, MemoryCurve, recorded_curve
from vramscope_server.analysis.techniques.plan import TrainingPlan, all_plans

WORTH_FRACTION: Final = 0.01
"""of the recorded peak, that each technique of a plan must bring"""


@dataclass(frozen=True)
class PlanPrediction:
    """What a plan would need."""

    plan: TrainingPlan
    peak_allocated_bytes: int | None
    """None: one of its techniques cannot be predicted here; the notes say why"""
    rows: int | None
    """of a micro-batch; None: not known, or the recorded ones cannot be divided so"""
    rows_that_fit: int | None
    """at a time, on the recorded card less 5 % for loose pieces; None: not known"""


@dataclass(frozen=True)
class Predictions:
    """What is known of other ways to train a recorded step."""

    step: int | None
    """the one that has the recording's peak; None: nothing happened"""
    rows: list[PlanPrediction]
    """the recorded plan first, then those asked for in their order, else by falling peak"""
    furthest_rows: int | None
    """``rows_that_fit`` is reckoned up to here: how a step goes with still more of them was not measured"""
    notes: list[str]
    """what is checkpointed; what cannot be told, and why"""


def predict(facts: StepFacts, asked: Sequence[TrainingPlan] = ()) -> Predictions:
    """``asked``: none: all that bring something. 10 ms for 20,000 events (an LSTM's); more for each plan to choose blocks."""
    if not len(facts.trace.events):
        return Predictions(None, [], None, ["Nothing happened in this recording."])
    if facts.peak_phase not in ("data", "forward", "backward", "optimizer"):
        where = "in an evaluation" if facts.peak_phase == "eval" else "where no phase of a training is known"
        return Predictions(
            facts.step, [], None, [f"The peak is {where}: what other ways to train would change cannot be told."]
        )
    begun = recorded_curve(facts)
    changes = {
        "gradient_accumulation": techniques.accumulation(facts),
        "gradient_checkpointing": techniques.checkpointed_blocks(facts, begun),
        "optimizer_8bit": techniques.eight_bit_state(facts),
        "no_foreach": techniques.one_parameter_at_a_time(facts),
    }
    in_all, room = batch.rows_of(facts), batch.room_bytes(facts)
    furthest = None if in_all is None else batch.FURTHEST * in_all

    def row(plan: TrainingPlan) -> PlanPrediction:
        parts = plan.gradient_accumulation
        rows = None if in_all is None or in_all % parts else in_all // parts
        curve: MemoryCurve | None = MemoryCurve(begun.stays_bytes, begun.goes_bytes, parts)
        for name in plan.used():
            change = changes[name]
            curve = None if curve is None or change is None else curve.with_change(change)
        if curve is None or parts > (in_all or parts):
            return PlanPrediction(plan, None, rows, None)
        fit = None if in_all is None or room is None else curve.rows_that_fit(in_all, int(room / (1 + PIECES)))
        return PlanPrediction(
            plan, curve.peak_bytes, rows, None if fit is None or furthest is None else min(fit, furthest)
        )

    rows = [row(TrainingPlan()), *map(row, asked)] if asked else _worth(list(map(row, all_plans())), facts.peak_bytes)
    return Predictions(facts.step, rows, furthest, _notes(facts, changes))


def _worth(rows: list[PlanPrediction], peak_bytes: int) -> list[PlanPrediction]:
    peaks = {row.plan: row.peak_allocated_bytes for row in rows if row.peak_allocated_bytes is not None}
    least = WORTH_FRACTION * peak_bytes
    worth = [plan for plan, peak in peaks.items() if all(peak <= peaks[simpler] - least for simpler in plan.simpler())]
    return sorted((row for row in rows if row.plan in worth), key=lambda row: (-peaks[row.plan], row.plan))


def _notes(facts: StepFacts, changes: dict[str, Change | None]) -> list[str]:
    notes = []
    if blocks := changes["gradient_checkpointing"]:
        notes.append(f"Checkpointing: of {blocks.of}, one by one.")
    elif checkpointing.is_recomputing(facts):
        notes.append("Checkpointing: something is computed again in backward already.")
    elif not facts.trace.modules:
        notes.append("Checkpointing: cannot be told, for this recording does not know modules.")
    else:
        notes.append("Checkpointing: there are no repeated blocks whose activations would make the peak lower.")
    if changes["gradient_accumulation"] is None:
        why = (
            "each row is compared with all others here, so that smaller batches are another loss"
            if techniques.compares_rows(facts)
            else "cannot be told, for no gradients are known in this step"
        )
        notes.append(f"Accumulation: {why}.")
    if changes["optimizer_8bit"] is None:
        notes.append("8-bit state: no optimizer state of 32 bits is known here.")
    if changes["no_foreach"] is None:
        notes.append("No foreach: this optimizer has nothing of the kind.")
    if evaluation.advise(facts) is not None:
        notes.append(
            "A forward that no backward follows is part of the peak (see the advice): its rows are taken for those of the batch."
        )
    if any(one["kind"] == "distributed" for one in facts.techniques):
        notes.append("Trained on several ranks: this is of one of them, and was not measured on such trainings.")
    return notes
