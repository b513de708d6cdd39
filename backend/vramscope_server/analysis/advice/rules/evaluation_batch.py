"""Advice for a run whose peak is in an evaluation: smaller training steps do not lower it.

Condition: the highest peak of all steps is in the phase ``eval``, and above all other phases of all steps.
Calculation: the memory that an evaluation adds to the memory after a step scales with its batch. The result is the batch at
which evaluation and training have equal peaks. Memory that does not scale with the batch (accumulated predictions) lowers it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.number_format import amount

SOURCE: Final = "an evaluation keeps no activations for a backward pass, so its batch may be larger than the training's"
MIN_ROWS: Final = 0.05
"""Smallest ratio of rows that is advised. Below it, the evaluation's peak has another cause."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if another phase is as high, or phases are unknown."""
    peaks = facts.phase_peaks_bytes
    evaluation = peaks.get("eval", 0)
    training = max((peak for phase, peak in peaks.items() if phase != "eval"), default=0)
    saves = evaluation - training
    if not training or saves < WORTH_FRACTION * evaluation or evaluation < (facts.run_peak_bytes or 0):
        return None
    after_step = _after_step_bytes(facts)
    times = (training - after_step) / (evaluation - after_step)
    if times < MIN_ROWS:
        return None
    return Advice(
        rule="evaluation_batch",
        sentence=(
            f"The run's peak of {amount(evaluation)} is in an evaluation; training steps reach {amount(training)}. With "
            f"{times:.2f} times the rows per evaluation batch, or fewer if it accumulates predictions, the peak falls by "
            f"{amount(saves)}. Changes to the training steps alone do not lower it."
        ),
        saves_bytes=saves,
        evidence={
            "of": "run",
            "evaluation_peak_bytes": evaluation,
            "training_peak_bytes": training,
            "resting_bytes": after_step,
            "times_the_rows": times,
        },
        source=SOURCE,
    )


def _after_step_bytes(facts: StepFacts) -> int:
    """Memory after the last recorded step, on which an evaluation starts."""
    step = facts.trace.events.step
    last = int(np.flatnonzero(step == step.max())[-1])
    return int(facts.allocated[last + 1])
