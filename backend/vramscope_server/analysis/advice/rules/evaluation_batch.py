"""The run's peak is in an evaluation: what makes the training's steps smaller does not lower it.

Condition: of all steps the highest is in the phase ``eval``, and above all other phases of all steps.
Arithmetic: what an evaluation adds to what rests on the device at a step's end goes with its batch; with the share of it that the
training's own steps add, both are equally high. What does not go with the batch (predictions that are gathered) makes it less.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.units import amount

SOURCE: Final = (
    "an evaluation keeps no activations for a backward: its batch may be larger than the training's, up to here"
)
LEAST_ROWS: Final = 0.05
"""times the rows: an evaluation that must be smaller than that is high for another reason"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where another phase is as high, or phases were not read."""
    peaks = facts.phase_peaks_bytes
    evaluation = peaks.get("eval", 0)
    training = max((peak for phase, peak in peaks.items() if phase != "eval"), default=0)
    saves = evaluation - training
    if not training or saves < WORTH_FRACTION * evaluation or evaluation < (facts.run_peak_bytes or 0):
        return None
    resting = _resting_bytes(facts)
    times = (training - resting) / (evaluation - resting)
    if times < LEAST_ROWS:
        return None
    return Advice(
        rule="evaluation_batch",
        sentence=(
            f"The run's peak of {amount(evaluation)} is in an evaluation; the training's own steps reach {amount(training)}. With "
            f"{times:.2f} times the rows in the evaluation's batch, or fewer where it gathers predictions, the peak falls by "
            f"{amount(saves)}. What changes the training's steps alone does not lower it."
        ),
        saves_bytes=saves,
        evidence={
            "of": "run",
            "evaluation_peak_bytes": evaluation,
            "training_peak_bytes": training,
            "resting_bytes": resting,
            "times_the_rows": times,
        },
        source=SOURCE,
    )


def _resting_bytes(facts: StepFacts) -> int:
    """Allocated when the last recorded step ended: what an evaluation begins on."""
    step = facts.trace.events.step
    last = int(np.flatnonzero(step == step.max())[-1])
    return int(facts.allocated[last + 1])
