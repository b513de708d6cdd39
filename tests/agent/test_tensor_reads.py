"""A search through tensors and another thread's backward pass never run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.memory import category_split
from vramscope.memory.category_split import Categories
from vramscope.memory.peak_counters import Interval
from vramscope.metrics.loss import LossWatch
from vramscope.process import tensor_reads
from vramscope.process.tensor_reads import TensorReads
from vramscope.steps.clock import StepClock
from vramscope.steps.hand_steps import HandSteps
from vramscope.steps.hooks import LoopHooks
from vramscope.steps.phase import BACKWARD

A_MOMENT, LONG = 0.1, 30.0


@pytest.fixture
def training() -> Iterator[LoopHooks]:
    """Hooks of a session whose training thread is this one."""
    hooks = LoopHooks(StepClock())
    hooks.install()
    try:
        torch.ones(1, requires_grad=True).sum().backward()
        assert hooks.clock.thread == threading.get_ident()
        yield hooks
    finally:
        hooks.remove()


def backward_in_thread() -> tuple[threading.Thread, threading.Event]:
    """A thread that runs one backward pass, and an event at its end."""
    ended = threading.Event()

    def work() -> None:
        torch.ones(1, requires_grad=True).sum().backward()
        ended.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread, ended


def test_a_backward_pass_of_another_thread_waits_for_the_end_of_a_read(
    training: LoopHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_reads, "MOST_WAIT", LONG)
    reads = training.clock.reads
    with reads as may_read:
        assert may_read
        thread, ended = backward_in_thread()
        assert not ended.wait(A_MOMENT) and reads.others_train
        with reads as may_read_inside:
            assert not may_read_inside, "nothing begins while it waits"
        third, third_ended = backward_in_thread()
        assert not third_ended.wait(A_MOMENT) and not ended.is_set(), "nor does a third thread's"
    assert ended.wait(LONG) and third_ended.wait(LONG)
    third.join()
    with reads as may_read:
        assert not may_read, "nor afterwards"
        _, ended = backward_in_thread()
        assert ended.wait(LONG), "only those during the last read wait"
    thread.join()


def test_another_threads_backward_pass_is_seen_in_later_steps_too(training: LoopHooks) -> None:
    """Without the leak detector and the techniques, gradients are still counted."""
    training.clock.end_step()
    assert training.graphs is None and training.techniques is None and training.clock.step
    thread, ended = backward_in_thread()
    assert ended.wait(LONG) and training.clock.reads.others_train
    thread.join()


class OneDevice:
    """A counter of a device, so that categories are read."""

    device = 0

    def cut(self) -> Interval:
        return Interval(0, 0, 0, 0, 0)


def test_no_gradients_are_counted_once_another_thread_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not in the rest of the step in which it begins, and nothing stays on the weights."""
    read: list[int] = []
    for name in ("count", "gradient_bytes"):
        original = getattr(category_split, name)
        monkeypatch.setattr(category_split, name, lambda *args, by=original: (read.append(1), by(*args))[1])
    clock = StepClock(in_every_step=True)
    clock.watch(OneDevice())  # type: ignore[arg-type]
    hooks = LoopHooks(clock)
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters())
    hooks.install([model])
    clock.breakdown = Categories(hooks.optimizers, hooks.roots, lambda device: 0)

    def train(steps: int) -> None:
        for _ in range(steps):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    try:
        train(1)
        clock.enter(BACKWARD)
        assert read and model[0].weight._post_accumulate_grad_hooks
        read.clear()
        clock.reads.another_thread_trains()
        train(20)
        assert not read and not model[0].weight._post_accumulate_grad_hooks
    finally:
        hooks.remove()


def test_a_backward_pass_does_not_wait_for_ever(training: LoopHooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_reads, "MOST_WAIT", A_MOMENT)
    with training.clock.reads:
        _, ended = backward_in_thread()
        assert ended.wait(LONG)


def test_the_training_threads_own_backward_pass_does_not_wait(training: LoopHooks) -> None:
    with training.clock.reads as may_read:
        torch.ones(1, requires_grad=True).sum().backward()
        assert may_read and not training.clock.reads.others_train


def test_a_scan_ends_early_when_another_thread_begins_to_train() -> None:
    """It says nothing then: what it found is a part."""
    reads, asked = TensorReads(), [0]
    scanner = Scanner(TensorKinds(), seconds=LONG, reads=reads)
    kept = [torch.ones(4) for _ in range(200)]
    clock = scanner._costs.clock

    def trains_at_the_fourth() -> float:
        asked[0] += 1
        reads.others_train |= asked[0] == 4
        return clock()

    whole = scanner.scan(10, lambda optimizer: False, None)
    assert whole is not None and whole.tensors >= len(kept)
    scanner._costs.clock = trains_at_the_fourth
    assert scanner.scan(10, lambda optimizer: False, None) is None
    after = asked[0]
    assert scanner.scan(10, lambda optimizer: False, None) is None and asked[0] == after, "none begins"


def test_a_backward_pass_that_no_hook_has_seen_is_seen_by_the_scan() -> None:
    """One that began before attach, or in plain steps."""
    inside, go_on = threading.Event(), threading.Event()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone()

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
            inside.set()
            go_on.wait(LONG)
            return gradient

    def work() -> None:
        Waits.apply(torch.ones(1, requires_grad=True)).sum().backward()

    scanner = Scanner(TensorKinds())
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(LONG)
        assert scanner.scan(10, lambda optimizer: False, None) is None
    finally:
        go_on.set()
        thread.join()


def test_threads_that_do_not_train_do_not_count() -> None:
    reads, stop = TensorReads(), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    reads.look_for_others()
    stop.set()
    thread.join()
    assert not reads.others_train


def test_the_loss_reads_no_gradients_once_another_thread_trains() -> None:
    """The leading optimizer may be that thread's."""
    reads, weight = TensorReads(), torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight])
    watch = LossWatch(lambda: optimizer, list, reads=reads)
    watch._choose_probes()
    weight.grad = None
    assert watch._gradients_were_dropped()
    reads.another_thread_trains()
    assert not watch._gradients_were_dropped()


def test_weights_updated_by_hand_are_not_noted_once_another_thread_trains() -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    reads = TensorReads()
    steps = HandSteps([model], reads)
    steps.after_backward()
    assert len(steps._noted) == 2
    steps._noted.clear()
    reads.another_thread_trains()
    steps.after_backward()
    assert not steps._noted
