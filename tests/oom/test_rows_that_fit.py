"""Micro-batches of as many rows as an earlier step had: they fit, if this step needs more because of its rows alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vramscope.oom_diagnosis.demand import estimate_of
from vramscope.oom_diagnosis.estimate import Basis, Estimate
from vramscope.oom_diagnosis.facts import Facts
from vramscope.oom_diagnosis.rows_that_fit import rows_that_fit

MIB = 1 << 20
DIED = Facts(
    asked_bytes=64 * MIB, total_bytes=2048 * MIB, free_bytes=46 * MIB, reserved_bytes=1482 * MIB, used_bytes=1447 * MIB,
    parameters_bytes=2 * MIB, gradients_bytes=0, optimizer_bytes=4 * MIB, buffers_bytes=0, trainable_bytes=2 * MIB,
    expected_state_bytes=4 * MIB, largest_parameter_bytes=MIB, phase="forward", step=3, batch_size=32000,
    before_forward_bytes=8 * MIB, peak_before_bytes=260 * MIB, end_before_bytes=8 * MIB, peak_now_bytes=1447 * MIB,
    input_shape=(32000, 3), input_shape_before=(4000, 3), input_sizes=(((2000, 3), 130 * MIB), ((4000, 3), 250 * MIB)),
)  # fmt: skip
"""The third step's derivatives of second order, at eight times as many points."""


def rows(**changes: Any) -> int | None:
    facts = replace(DIED, **changes)
    estimate = estimate_of(facts)
    assert estimate is not None and facts.available_bytes is not None
    return rows_that_fit(facts, estimate, facts.available_bytes)


def test_the_most_rows_of_an_earlier_step_fit() -> None:
    assert rows() == 4000


def test_a_step_that_would_not_fit_beside_what_has_come_since_does_not_count() -> None:
    """The weights of a teacher, say, came after the step of 4,000 rows."""
    assert rows(other_models_bytes=1240 * MIB, before_forward_bytes=1248 * MIB) == 2000


@pytest.mark.parametrize(
    "changes",
    [
        {"input_shape": (32000, 4)},
        {"input_shape_before": (4000, 4), "input_shape": (32000, 4)},
        {"input_shape": (4000, 3), "batch_size": 4000},
        {"batch_size": None},
        {"growth_bytes": 100 * MIB},
        {"leaked_bytes": 100 * MIB},
        {"evaluates": True, "forwards": 2},
        {"thread": "other"},
        {"forwards": 9},
        {"phase": "other"},
    ],
)
def test_nothing_is_known_where_more_than_the_rows_differs(changes: dict[str, Any]) -> None:
    assert rows(**changes) is None


def test_a_need_that_the_rows_do_not_explain_is_of_something_else() -> None:
    """Twenty times as many edges of the same points: a part of them would have as many edges for each point."""
    assert rows(input_shape=(5000, 3), batch_size=5000) is None
    assert rows(input_sizes=(((4000, 3), 150 * MIB),)) is None, "eight times 150 MiB are less than what was allocated"


def test_a_request_for_each_pair_of_rows_explains_their_square() -> None:
    pairs = {"input_shape": (15000, 3), "batch_size": 15000, "input_sizes": (((4000, 3), 150 * MIB),)}
    assert rows(**pairs) is None
    sized = {"asked_bytes": 860 * MIB, "used_bytes": 860 * MIB, "reserved_bytes": 900 * MIB, "free_bytes": 628 * MIB}
    assert rows(**pairs, **sized) == 4000


TOOK = {
    "parameters_bytes": 128 * MIB, "trainable_bytes": 128 * MIB, "optimizer_bytes": 0, "expected_state_bytes": 0,
    "largest_parameter_bytes": 16 * MIB, "scales_with_length": True, "before_forward_bytes": 128 * MIB,
    "end_before_bytes": 128 * MIB, "input_sizes": (), "peak_before_bytes": 448 * MIB, "progress": 0.1,
}  # fmt: skip


def test_gradients_that_were_absent_at_the_peak_do_not_hide_activations() -> None:
    """At the peak of the step before, 320 MiB were activations, or gradients too. More rows are assumed to need the first."""
    known = estimate_of(replace(DIED, **TOOK))
    assert known is not None and known.basis is Basis.MORE_ROWS
    most = known.fixed_bytes + (known.working_bytes or 0) + known.error_bytes
    assert (128 + 8 * 1.25 * 320) * MIB <= most <= (128 + 8 * 1.25 * 340) * MIB


def test_gradients_that_were_there_before_the_forward_were_there_at_the_peak() -> None:
    there = replace(DIED, **TOOK, gradients_bytes=128 * MIB)
    known = estimate_of(replace(there, used_bytes=1500 * MIB, before_forward_bytes=256 * MIB))
    assert known is not None and known.basis is Basis.MORE_ROWS
    assert known.working_bytes == 8 * 1.25 * 192 * MIB


def test_micro_batches_begin_with_the_gradients_of_the_first_one() -> None:
    """Where gradients came when activations were freed, a part of the batch needs its part of the activations and all gradients."""
    died = replace(replace(DIED, **TOOK), input_shape_before=(32000, 3), peak_before_bytes=1700 * MIB)
    known = estimate_of(died)
    assert known is not None and known.basis is Basis.EARLIER_STEP
    assert known.high_with(0.5) == int((256 + 16 + (1444 + known.error_bytes / MIB + 128) / 2) * MIB * 1.05)


def extrapolated(**changes: Any) -> Estimate:
    """The forward of a student that is done, at four times as many rows. What its teacher returned is constant."""
    known: dict[str, Any] = {
        "asked_bytes": 32 * MIB, "used_bytes": 1470 * MIB, "parameters_bytes": 70 * MIB, "optimizer_bytes": 140 * MIB,
        "trainable_bytes": 70 * MIB, "expected_state_bytes": 140 * MIB, "before_forward_bytes": 1230 * MIB,
        "to_come_bytes": 150 * MIB, "batch_size": 8000, "input_shape": (8000, 3), "input_shape_before": (2000, 3),
        "input_sizes": (((2000, 3), 190 * MIB),), "peak_before_bytes": 700 * MIB,
    }  # fmt: skip
    facts = replace(DIED, **(known | changes))
    estimate = estimate_of(facts)
    assert estimate is not None
    return estimate


def test_an_extrapolation_that_an_earlier_step_contradicts_is_not_used() -> None:
    """The losses of many layers, behind the last one of the model, took most of the earlier step."""
    scaled = extrapolated()
    assert scaled.basis is Basis.SMALLER_INPUT
    assert scaled.working_bytes == 4 * (190 - 70) * MIB
    assert scaled.error_bytes >= 3 * 70 * MIB, "gradients may have been absent at the earlier peak"
    small = extrapolated(input_sizes=(((2000, 3), 80 * MIB),))
    assert (small.basis, small.working_bytes) == (Basis.GRAPH, (1470 - 1230 + 32 + 150) * MIB)


def test_a_large_request_of_the_forward_may_come_twice_more_in_the_backward() -> None:
    """As its gradient, and as that of what it was computed from."""
    large = extrapolated(asked_bytes=900 * MIB, to_come_bytes=0, input_sizes=())
    assert (large.basis, large.working_bytes) == (Basis.GRAPH, (1470 - 1230 + 900 + 900) * MIB)
    assert large.error_bytes >= 900 * MIB
