"""The cause depends on when memory ran out: before the first step, between two steps, or beside data that waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.facts import Facts

MIB = 1 << 20
BEFORE_TRAINING = Facts(
    asked_bytes=300 * MIB, total_bytes=2000 * MIB, free_bytes=100 * MIB, reserved_bytes=1400 * MIB, used_bytes=1390 * MIB,
    parameters_bytes=10 * MIB, gradients_bytes=0, optimizer_bytes=0, buffers_bytes=0, trainable_bytes=10 * MIB,
    phase="other", step=0, no_graph_yet=True,
)  # fmt: skip
"""A list of tensors is made, which has no name yet."""


def test_before_the_first_forward_pass_nothing_is_an_activation() -> None:
    found = diagnose(BEFORE_TRAINING)
    assert found.kind is CauseKind.DATA
    assert "before the first step" in found.sentence
    assert "activations" not in found.sentence
    assert ".cpu()" in found.first_aid


@pytest.mark.parametrize(
    "more",
    [
        {"no_graph_yet": False},  # functions of the user's own may be the forward pass
        {"parameters_bytes": 0, "trainable_bytes": 0},  # the same
        {"before_forward_bytes": 20 * MIB, "phase": "forward"},
        {"thread": "worker"},
        {"step": 3},
    ],
)
def test_where_a_forward_pass_may_have_begun_these_may_be_activations(more: dict[str, Any]) -> None:
    assert diagnose(replace(BEFORE_TRAINING, **more)).kind is CauseKind.ACTIVATIONS


def test_a_data_set_is_the_cause_before_there_is_a_model() -> None:
    """It is normalised, and a result without a name is as large."""
    no_model = replace(BEFORE_TRAINING, parameters_bytes=0, trainable_bytes=0)
    found = diagnose(replace(no_model, data_bytes=600 * MIB, data_name="pictures", data_line="a.py:3"))
    assert found.kind is CauseKind.DATA
    assert "data in pictures (a.py:3)" in found.sentence.lower() and "activations" not in found.sentence


BETWEEN_STEPS = Facts(
    asked_bytes=1800 * MIB, total_bytes=4000 * MIB, free_bytes=1000 * MIB, reserved_bytes=2500 * MIB, used_bytes=1300 * MIB,
    parameters_bytes=640 * MIB, gradients_bytes=0, optimizer_bytes=640 * MIB, buffers_bytes=0, trainable_bytes=640 * MIB,
    expected_state_bytes=640 * MIB, peak_before_bytes=2500 * MIB, end_before_bytes=1290 * MIB, phase="data", step=1,
    input_shape_before=(32, 64),
)  # fmt: skip
"""A temporary that the first step freed before it made gradients. Its block is split now."""


def test_a_request_before_the_gradients_does_not_need_room_beside_them() -> None:
    assert diagnose(BETWEEN_STEPS).kind is CauseKind.FRAGMENTATION


@pytest.mark.parametrize(
    "more",
    [
        {"gradients_bytes": 640 * MIB, "used_bytes": 1940 * MIB},  # they are there
        {"peak_before_bytes": 3800 * MIB},  # both were there at once: this step needs as much
        {"asked_bytes": 2400 * MIB},  # does not fit in one block either
    ],
)
def test_a_request_that_may_be_beside_gradients_is_no_fragmentation(more: dict[str, Any]) -> None:
    assert diagnose(replace(BETWEEN_STEPS, **more)).kind is not CauseKind.FRAGMENTATION


WAITING = Facts(
    asked_bytes=150 * MIB, total_bytes=2000 * MIB, free_bytes=50 * MIB, reserved_bytes=1480 * MIB, used_bytes=1470 * MIB,
    parameters_bytes=10 * MIB, gradients_bytes=0, optimizer_bytes=0, buffers_bytes=0, trainable_bytes=10 * MIB,
    before_forward_bytes=1250 * MIB, data_bytes=1090 * MIB, data_name="waiting", phase="forward", progress=0.3, step=0,
)  # fmt: skip
"""Seven batches wait on the device, and the forward pass of another one runs."""


def test_data_that_waits_is_the_cause_where_it_is_most_of_the_memory() -> None:
    found = diagnose(WAITING)
    assert found.kind is CauseKind.DATA
    assert "waiting" in found.sentence


@pytest.mark.parametrize(
    "more",
    [
        {"data_bytes": 600 * MIB},  # less than half
        {"data_bytes": 1090 * MIB, "progress": 0.02},  # without it the step would be far too large
    ],
)
def test_data_is_not_the_cause_where_the_step_needs_more(more: dict[str, Any]) -> None:
    assert diagnose(replace(WAITING, **more)).kind is CauseKind.ACTIVATIONS


def test_data_is_not_the_cause_where_the_request_is_most_of_the_memory() -> None:
    """The edges of a large graph are small beside the values of all edges."""
    edges = replace(
        WAITING, data_bytes=92 * MIB, before_forward_bytes=104 * MIB, used_bytes=114 * MIB, progress=None, step=4
    )
    values = replace(edges, asked_bytes=1430 * MIB, reserved_bytes=124 * MIB, free_bytes=1400 * MIB)
    assert diagnose(values).kind is CauseKind.ACTIVATIONS
    kept = replace(
        values, data_bytes=800 * MIB, before_forward_bytes=812 * MIB, used_bytes=822 * MIB, asked_bytes=750 * MIB
    )
    assert diagnose(replace(kept, reserved_bytes=830 * MIB, free_bytes=700 * MIB)).kind is CauseKind.DATA


def test_data_is_not_the_cause_where_the_weights_are_more() -> None:
    """A second set of gradients in a list is no data."""
    died = replace(
        WAITING, phase="backward", progress=None, before_forward_bytes=None, peak_before_bytes=1200 * MIB, step=3,
        parameters_bytes=400 * MIB, gradients_bytes=350 * MIB, trainable_bytes=400 * MIB, data_bytes=500 * MIB,
    )  # fmt: skip
    assert diagnose(died).kind is CauseKind.WEIGHTS


def test_of_two_parts_of_one_size_the_weights_are_the_cause() -> None:
    """The steps of a fused optimizer lie on the device: its state is some bytes more than weights and gradients."""
    died = Facts(
        asked_bytes=320 * MIB, total_bytes=2000 * MIB, free_bytes=180 * MIB, reserved_bytes=1350 * MIB,
        used_bytes=1340 * MIB, parameters_bytes=320 * MIB, gradients_bytes=320 * MIB, optimizer_bytes=640 * MIB + 5120,
        buffers_bytes=0, trainable_bytes=320 * MIB, expected_state_bytes=640 * MIB, phase="other", step=1,
        peak_before_bytes=1300 * MIB, end_before_bytes=1300 * MIB,
    )  # fmt: skip
    assert diagnose(died).kind is CauseKind.WEIGHTS
    assert diagnose(replace(died, optimizer_bytes=700 * MIB)).kind is CauseKind.OPTIMIZER
