"""Rows of a micro-batch that fit because an earlier step with as many rows was complete. Nothing is scaled: whatever the model does
with its rows, it has done it with these."""

from __future__ import annotations

from dataclasses import replace

from vramscope.oom_diagnosis.earlier_steps import asks_for
from vramscope.oom_diagnosis.estimate import Basis, Estimate
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.input_growth import has_larger_input

UNKNOWN_NEED = (Basis.STATE_UNKNOWN, Basis.OTHER_THREAD, Basis.FORWARDS_WITHOUT_BACKWARD)


def rows_that_fit(facts: Facts, estimate: Estimate, available_bytes: int) -> int | None:
    """Most rows of an earlier step that a micro-batch may have; None where no earlier step shows it.

    This step must need more because of its rows. If it needs more than they explain, a micro-batch would too.
    """
    axis = facts.axis_of_more_rows
    grows = bool(facts.growth_bytes or facts.leaked_bytes) or estimate.may_grow
    if axis is None or not has_larger_input(facts) or grows or facts.evaluates or estimate.basis in UNKNOWN_NEED:
        return None
    now, rows = facts.input_shape, facts.input_shape[axis]
    scaling = (facts.working_bytes or 0) - facts.constant_bytes + (facts.asked_bytes or 0)
    power = 2 if asks_for(facts, rows * rows) else 1  # it has a value for each pair of rows
    fitting = []
    for shape, risen in facts.input_sizes:
        if shape[:axis] + shape[axis + 1 :] != now[:axis] + now[axis + 1 :] or not 0 < shape[axis] < rows:
            continue
        explained = risen * (rows / shape[axis]) ** power
        # The gradients that the earlier step made are in ``risen``. Here they are there before the second micro-batch.
        need = replace(estimate, working_bytes=risen, error_bytes=0, unscaled_bytes=0, is_crude=False)
        if scaling <= explained and need.fits(available_bytes):
            fitting.append(shape[axis])
    return max(fitting, default=None)
