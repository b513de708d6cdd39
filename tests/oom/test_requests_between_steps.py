"""Requests before a forward pass: what computes belongs to the step, what is created or copied is data."""

from __future__ import annotations

import linecache
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from vramscope.oom import error_stack
from vramscope.oom.optimizer_state import superseded_bytes, surplus_bytes
from vramscope.oom.requesting_call import computes
from vramscope.oom_diagnosis.data_of_steps import is_made_in_each_step
from vramscope.oom_diagnosis.demand import estimate_of
from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.facts import Facts
from vramscope.protocol import series

MIB = 1 << 20
BETWEEN = Facts(
    asked_bytes=882 * MIB, total_bytes=2048 * MIB, free_bytes=446 * MIB, reserved_bytes=1082 * MIB, used_bytes=1005 * MIB,
    parameters_bytes=3 * MIB, gradients_bytes=0, optimizer_bytes=6 * MIB, buffers_bytes=0, trainable_bytes=3 * MIB,
    expected_state_bytes=6 * MIB, phase="data", step=3, peak_before_bytes=250 * MIB, end_before_bytes=126 * MIB,
    input_shape_before=(128, 3, 224, 224),
)  # fmt: skip
"""Views of each picture, in one tensor before the model is called."""


class Asking:
    """Reports what its caller's expression is."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: computes(sys._getframe(1))

    def __add__(self, other: object) -> bool | None:
        return computes(sys._getframe(1))

    def __getitem__(self, place: object) -> bool | None:
        return computes(sys._getframe(1))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not report the running expression")
def test_a_call_that_computes_is_told_from_one_that_creates_or_copies() -> None:
    one = Asking()
    assert one.cat([1, 2]) is True
    assert one.one_hot(1, 2) is True
    assert (one + 1, one[3]) == (True, True)
    assert (one.zeros(3), one.cuda(), one.to("cuda")) == (False, False, False)
    # fmt: off
    assert one.cat(
        [one,
         "ä"],
    ) is True
    # fmt: on
    assert (one.FloatTensor(3), one.sparse_coo_tensor(3), one.new_tensor(3)) == (False, False, False)
    assert one.sub("\n", "") is None, "the parser warns of some escape sequences"
    built = eval("one.cat(1)", {"one": one})
    assert built is None, "its source is not known"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not report the running expression")
def test_a_source_file_that_changed_after_the_import_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    old, new = "made = one.zeros(3)\n", "made = one.joined(3)\n"
    for source, seen in ((old, False), (new, None)):
        names: dict[str, Any] = {"one": Asking()}
        file.write_text(source)
        linecache.checkcache(str(file))
        exec(compile(old, str(file), "exec"), names)
        assert names["made"] is seen


def test_tensors_computed_before_the_forward_pass_are_activations() -> None:
    assert diagnose(replace(BETWEEN, computes=True)).kind == "activations"
    assert diagnose(replace(BETWEEN, computes=False)).kind == "data"
    assert diagnose(BETWEEN).kind == "data", "how the request was made is not known"


def test_labels_of_the_last_step_are_not_blamed_for_those_being_computed() -> None:
    labels = replace(BETWEEN, used_bytes=240 * MIB, data_bytes=98 * MIB, data_name="aims")
    assert diagnose(replace(labels, asked_bytes=1300 * MIB, computes=True)).kind == "activations"
    assert diagnose(replace(labels, asked_bytes=1300 * MIB, computes=False)).kind == "data"


def test_data_that_each_step_makes_for_its_input_is_its_own() -> None:
    """What a teacher returns, four times as much for four times as many rows."""

    def made(held: int, then: int | None, ended: int = 60, rows: int = 8000) -> bool:
        record: Any = SimpleNamespace(
            before_forward_in_last_step_bytes=None if then is None else then * MIB,
            last_step={"end_allocated_bytes": ended * MIB},
            owned_bytes={"parameters": 50 * MIB},
            input_shape=[rows, 1024],
            input_shape_before=[2000, 1024],
        )
        return is_made_in_each_step(record, held * MIB)

    assert made(750, 240)
    assert not made(750, 240, rows=2000), "this input explains no more than the last one's"
    assert not made(750, 60), "the last step had none: a data set that was loaded since then"
    assert not made(190, 240, ended=250), "it was there when the last step ended"
    assert not made(750, None)


def test_gradients_between_steps_are_no_more_than_the_last_step_had() -> None:
    """Members of an ensemble that are trained in turn: the gradients of one are there at a time."""
    members = replace(
        BETWEEN, asked_bytes=144 * MIB, free_bytes=86 * MIB, reserved_bytes=1442 * MIB, used_bytes=1440 * MIB, phase="other",
        parameters_bytes=576 * MIB, optimizer_bytes=576 * MIB, trainable_bytes=576 * MIB, expected_state_bytes=576 * MIB,
        peak_before_bytes=1220 * MIB, end_before_bytes=1160 * MIB,
    )  # fmt: skip
    assert members.full_gradients_bytes == 68 * MIB
    assert diagnose(members).kind == "weights"
    assert replace(members, phase="forward").full_gradients_bytes == 576 * MIB
    assert replace(members, end_before_bytes=1000 * MIB).full_gradients_bytes == 576 * MIB, (
        "weights have come since then"
    )


def test_nothing_is_enough_while_a_file_is_read() -> None:
    """How much of it is still to come is not known."""
    reads = replace(BETWEEN, asked_bytes=16 * MIB, used_bytes=1080 * MIB, computes=False)
    for is_reading in (True, False):
        estimate = estimate_of(replace(reads, is_reading=is_reading))
        assert estimate is not None
        assert (estimate.high_bytes is None) is is_reading


def test_a_request_after_the_last_optimizers_step_is_not_the_optimizers() -> None:
    """With several optimizers, the phase goes on when one has stepped."""
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.ones(3)
    seen: list[bool] = []

    class Looks(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            frame: FrameType | None = sys._getframe()
            while frame is not None:
                seen.append(error_stack.runs_optimizer(frame))
                frame = frame.f_back

    Looks([weight], lr=0.1).step()
    assert any(seen)
    assert not error_stack.runs_optimizer(sys._getframe())


def test_a_result_with_a_graph_shows_that_a_forward_pass_has_begun() -> None:
    weight = nn.Parameter(torch.zeros(3))
    plain = weight.detach() * 2
    assert not error_stack.has_graph(sys._getframe())
    out = weight * 2
    assert error_stack.has_graph(sys._getframe())
    assert len(plain) == len(out)


def test_state_of_earlier_optimizers_of_the_same_weights_is_counted() -> None:
    weight, other = nn.Parameter(torch.zeros(1024)), nn.Parameter(torch.zeros(1024))

    def stepped(parameter: nn.Parameter) -> torch.optim.Optimizer:
        parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        optimizer.step()
        return optimizer

    restarts = [stepped(weight) for _ in range(3)]
    idle = set(map(id, restarts[:2]))
    assert superseded_bytes(restarts, series.CPU, idle) == 2 * 4096
    assert superseded_bytes(restarts, series.CPU, set()) == 0, "those of several tasks step in turn"
    assert superseded_bytes(restarts[:2], series.CPU, idle) == 0, "none of them steps"
    assert superseded_bytes(restarts[1:], series.CPU, idle) == 0, "a wrapper has state beside that of its optimizer"
    assert superseded_bytes([*restarts[:2], stepped(other)], series.CPU, idle) == 0
    wrappers = [SimpleNamespace(state=restarts[0].state) for _ in range(2)]
    ones = {id(restarts[0]), *map(id, wrappers)}
    assert superseded_bytes([restarts[0], *wrappers, restarts[2]], series.CPU, ones) == 0, "one state of three objects"


def test_state_of_earlier_optimizers_is_a_leak_if_all_fits_without_it() -> None:
    restarts = replace(
        BETWEEN, phase="optimizer", step=14, asked_bytes=16 * MIB, free_bytes=6 * MIB, reserved_bytes=1522 * MIB,
        used_bytes=1520 * MIB, parameters_bytes=80 * MIB, gradients_bytes=80 * MIB, optimizer_bytes=1360 * MIB,
        trainable_bytes=80 * MIB, expected_state_bytes=160 * MIB, peak_before_bytes=1500 * MIB, end_before_bytes=1440 * MIB,
        peak_now_bytes=1520 * MIB,
    )  # fmt: skip
    assert diagnose(replace(restarts, superseded_state_bytes=1200 * MIB)).kind == "leak"
    assert diagnose(restarts).kind == "optimizer"
    assert diagnose(replace(restarts, superseded_state_bytes=8 * MIB)).kind == "optimizer"


def test_surplus_state_is_counted_by_the_weights_that_have_state() -> None:
    """Adapters: an eighth of all weights is trained, so that four optimizers have as much state as one for all of them."""
    frozen = nn.Parameter(torch.zeros(8192), requires_grad=False)
    adapter, later = nn.Parameter(torch.zeros(1024)), nn.Parameter(torch.zeros(1024))

    def stepped(parameter: nn.Parameter) -> torch.optim.Optimizer:
        parameter.grad = torch.ones_like(parameter)
        optimizer = torch.optim.SGD([parameter, frozen], lr=0.1, momentum=0.9)
        optimizer.step()
        return optimizer

    restarts: list[Any] = [stepped(adapter) for _ in range(4)]
    assert surplus_bytes(restarts, series.CPU, 4 * 4096) == 3 * 4096
    assert surplus_bytes(restarts[:1], series.CPU, 4096) == 0
    assert surplus_bytes([restarts[0], stepped(later)], series.CPU, 2 * 4096) == 0, "of several tasks"
    assert surplus_bytes([torch.optim.LBFGS([adapter])], series.CPU, 4096) is None, "how much it keeps is not known"
