"""What is promised of a remedy: only what is known within a few percent, and never room that something keeps filling."""

from __future__ import annotations

from dataclasses import replace

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.demand import estimate_of
from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.estimate import Basis, Estimate
from vramscope.oom_diagnosis.facts import Facts

MIB = 1 << 20
BACKWARD = Facts(
    asked_bytes=158 * MIB, total_bytes=2000 * MIB, free_bytes=32 * MIB, reserved_bytes=1490 * MIB, used_bytes=1340 * MIB,
    parameters_bytes=32 * MIB, gradients_bytes=0, optimizer_bytes=0, buffers_bytes=0, trainable_bytes=32 * MIB,
    phase="backward", step=0, batch_size=64, peak_now_bytes=1340 * MIB,
)  # fmt: skip


def estimate(working: int, error: int, **more: int | bool) -> Estimate:
    return Estimate(100 * MIB, 0, working * MIB, error * MIB, 0, 0, Basis.GRAPH, **more)  # type: ignore[arg-type]


def test_a_saving_of_a_smaller_batch_is_promised_only_where_the_need_is_known() -> None:
    assert estimate(1000, 100).saved_by(0.25) == 750 * MIB
    assert estimate(1000, 101).saved_by(0.25) is None, "extrapolated"
    assert estimate(1000, 0, may_grow=True).saved_by(0.25) is None


def test_copies_of_the_update_bound_the_saving_of_a_smaller_batch() -> None:
    """No batch makes them smaller."""
    assert estimate(1000, 0, update_bytes=600 * MIB).saved_by(0.25) == 400 * MIB
    assert estimate(1000, 0, update_bytes=1200 * MIB).saved_by(0.25) == 0


def test_models_that_pile_up_leave_no_device_large_enough() -> None:
    """One model as large as the training one may be a reference. Of two, as of folds, more are expected."""
    for kept, known in ((1, True), (2, False)):
        need = estimate_of(replace(BACKWARD, other_models_bytes=kept * 32 * MIB, kept_models=kept))
        assert need is not None
        assert (need.high_bytes is not None) is known


def test_a_part_that_is_recomputed_wants_more_than_this_request() -> None:
    """Within the backward a checkpointed part runs again: its forward goes on after the request."""
    assert diagnose(BACKWARD).kind is CauseKind.FRAGMENTATION
    again = diagnose(replace(BACKWARD, recomputes=True))
    assert again.kind is CauseKind.ACTIVATIONS
    assert again.estimate is not None and again.estimate.high_bytes is None
