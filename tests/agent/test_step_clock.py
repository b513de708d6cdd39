"""Steps and phases as the training thread marks them, in loops of many shapes, on the CPU."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import pickle
import subprocess
import sys
import threading
import weakref
from random import Random

import pytest
import torch
from torch import nn

from vramscope.integrations.extensions import extend
from vramscope.memory.peak_counters import Interval
from vramscope.process.live_objects import living
from vramscope.process.module_calls import module_calls
from vramscope.process.watched_calls import is_watched
from vramscope.protocol import series
from vramscope.sampling.step_blocks import step_row
from vramscope.steps import detail_plan
from vramscope.steps.clock import StepClock
from vramscope.steps.detail_plan import UNWATCHED_STEPS, WARM_UP_STEPS
from vramscope.steps.hooks import LoopHooks
from vramscope.steps.phase import BACKWARD, FORWARD


@pytest.fixture
def clock():
    """Whose time goes by a microsecond whenever it is asked, and by more in :func:`something_else_runs`."""
    at = itertools.count(0, 1000)
    clock = StepClock(now=lambda: next(at) + clock_ahead[0])
    clock_ahead[0] = 0
    return clock


clock_ahead = [0]
"""Nanoseconds by which the clock is ahead."""


def something_else_runs() -> None:
    clock_ahead[0] += 1_000_000


class Readings:
    """A counter of a device that counts how often it is read."""

    device = 0
    count = 0

    def cut(self) -> Interval:
        self.count += 1
        return Interval(0, 0, 0, 0, 0)


@pytest.fixture
def hooks(clock):
    if living(torch.optim.Optimizer):  # of an earlier test, in a cycle: steps by hand end only where there is none
        gc.collect()
    hooks = LoopHooks(clock)
    extend(hooks)
    yield hooks
    hooks.remove()


def phases_of(step) -> list[str]:
    return [series.PHASES[stretch.phase] for stretch in step.intervals]


def train_once(model, optimizer, micro_steps: int = 1) -> None:
    for _ in range(micro_steps):
        model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_plain_loop_has_data_forward_backward_and_optimizer_in_that_order(clock, hooks) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    hooks.install([model])
    train_once(model, optimizer)
    train_once(model, optimizer)
    first, second = clock.finished.take()
    assert phases_of(first) == ["other", "forward", "backward", "optimizer"]
    assert phases_of(second) == ["data", "forward", "backward", "optimizer"]
    assert (first.number, second.number) == (1, 2)
    assert second.intervals[0].start_ns == first.intervals[-1].end_ns, "no time between steps is lost"


def test_what_is_done_between_backward_and_optimizer_is_neither(clock, hooks) -> None:
    """Clipping, say. Where nothing is done there, the optimizer begins where the backward ended, at one reading."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    readings = Readings()
    clock.watch(readings)
    for clips in (False, True):
        model(torch.randn(4, 8)).sum().backward()
        backward_over = clock.cuts()[-1].end_ns
        if clips:
            something_else_runs()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    first, second = clock.finished.take()
    assert phases_of(first)[-3:] == ["forward", "backward", "optimizer"]
    assert phases_of(second) == ["data", "forward", "backward", "other", "optimizer"]
    assert second.intervals[2].end_ns == backward_over, "it ended when it returned"
    assert readings.count == len(first.intervals) + len(second.intervals)


def test_a_backward_that_fails_is_where_it_failed(clock, hooks) -> None:
    hooks.install()
    with pytest.raises(RuntimeError):
        torch.ones(1).backward()
    assert clock.phase == BACKWARD


def test_gradient_accumulation_is_one_step_of_many_micro_steps(clock, hooks) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    train_once(model, optimizer, micro_steps=4)
    (step,) = clock.finished.take()
    assert step.micro_steps == 4
    assert phases_of(step).count("forward") == 4
    row = step_row(step, 1, series.CPU)
    assert row["backward_ns"] == sum(s.own_ns for s in step.intervals if s.phase == BACKWARD)


def test_what_the_agent_takes_is_no_part_of_the_phase_that_it_falls_into(clock, hooks) -> None:
    """A scan for leaks lasts longer than the batch that follows it."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    train_once(model, optimizer)
    clock.timed(something_else_runs)
    train_once(model, optimizer)
    row = step_row(clock.finished.take()[1], 1, series.CPU)
    assert row["agent_ns"] >= 1_000_000
    assert row["data_ns"] < 100_000
    phases = sum(value for name, value in row.items() if name.removesuffix("_ns") in series.PHASES)
    assert phases < 100_000


def test_a_gan_with_two_optimizers_makes_one_step_an_iteration(clock, hooks) -> None:
    generator, critic = nn.Linear(8, 8), nn.Linear(8, 1)
    optimizers = torch.optim.Adam(critic.parameters()), torch.optim.Adam(generator.parameters())
    hooks.install([generator, critic])
    for _ in range(5):
        critic(generator(torch.randn(4, 8)).detach()).sum().backward()
        optimizers[0].step()
        critic(generator(torch.randn(4, 8))).sum().backward()
        optimizers[1].step()
    assert clock.step == 5
    assert [step.micro_steps for step in clock.finished.take()][1:] == [2] * 4


def test_a_new_optimizer_leads_when_the_old_one_is_gone(clock, hooks) -> None:
    """k-fold: each fold makes its own."""
    hooks.install()
    for _ in range(3):
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hooks.models.add(model)
        for _ in range(4):
            train_once(model, optimizer)
        del model, optimizer
        gc.collect()
    assert clock.step == 12


def test_of_models_that_are_trained_one_after_the_other_and_kept_each_steps(clock, hooks) -> None:
    """k-fold with short folds: the old optimizer is alive, and steps no more. At a fold's second step its first is known, too."""
    hooks.install()
    kept = []
    for _ in range(4):
        model = torch.nn.Linear(2, 1)
        kept.append(torch.optim.SGD(model.parameters()))
        for _ in range(12):
            model(torch.ones(4, 2)).sum().backward()
            kept[-1].step()
    records = clock.finished.take()
    assert [step.number for step in records] == list(range(1, 4 * 12 + 1)) and clock.step == 4 * 12
    assert {step.micro_steps for step in records} == {1}
    watched = [phases_of(step) for step in records[1:] if step.watched]
    assert watched and all(phases == ["forward", "backward", "optimizer"] for phases in watched)
    ends = [step.end_ns for step in records]
    assert ends == sorted(ends) and all(step.intervals[-1].end_ns == step.end_ns for step in records)


def test_a_critic_that_was_trained_alone_at_first_leads_its_gan(clock, hooks) -> None:
    critic, generator = torch.nn.Linear(2, 1), torch.nn.Linear(2, 2)
    hooks.install([generator, critic])
    optimizers = torch.optim.SGD(critic.parameters()), torch.optim.SGD(generator.parameters())
    for iteration in range(30):
        critic(generator(torch.ones(4, 2)).detach()).sum().backward()
        optimizers[0].step()
        if iteration >= 20:
            critic(generator(torch.ones(4, 2))).sum().backward()
            optimizers[1].step()
    assert clock.step == 30


def test_a_step_that_calls_its_parents_step_is_one_step(clock, hooks) -> None:
    """PyTorch's hooks stand around the step of each class of which there was an optimizer, and so around one step twice."""

    class Careful(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                raise RuntimeError("not today")
            return super().step(closure)

    model = nn.Linear(4, 4)
    torch.optim.SGD(model.parameters(), lr=0.1)  # the parent's step is hooked, too
    optimizer = Careful(model.parameters(), lr=0.1)

    hooks.install([model])

    def step() -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    step()
    step()
    assert clock.step == 2
    optimizer.fails = True
    with pytest.raises(RuntimeError):
        step()
    optimizer.fails = False
    step()
    step()
    assert clock.step == 4
    optimizer.step()
    assert clock.step == 5, "also with no backward before it"


def test_what_somebody_has_wrapped_meanwhile_is_heard_no_more_after_removal(clock, hooks, monkeypatch) -> None:
    model = nn.Linear(4, 4)
    hooks.install([model])
    ours = torch.autograd.backward
    seen = []

    def theirs(*args, **kwargs):
        seen.append(clock.micro_steps)
        return ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    model(torch.ones(2, 4)).sum().backward()
    assert clock.micro_steps == 1
    hooks.remove()
    assert torch.autograd.backward is theirs
    model(torch.ones(2, 4)).sum().backward()
    assert (seen, clock.micro_steps) == ([0, 1], 1)
    assert not is_watched(ours)


def test_forward_passes_of_a_models_copy_are_detected(clock, hooks) -> None:
    """Folds that begin with a copy of one model each: from the second step of a fold on its forward pass is known."""
    base = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    hooks.install([base])

    def step(model, optimizer) -> list[int]:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        return [interval.phase for interval in clock.finished.take()[-1].intervals]

    for _ in range(3):
        model = copy.deepcopy(base)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        base(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        step(model, optimizer)
        assert FORWARD in step(model, optimizer)
    assert not module_calls.listens_to_all
    assert len(hooks.roots) <= 4


def update_by_hand(model, how: str) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            (weight.data if how == "data" else weight).sub_(weight.grad, alpha=0.1)
            if how == "zeroed":
                weight.grad.zero_()


@pytest.mark.parametrize("how", ["weight", "data", "zeroed"])
@pytest.mark.parametrize("clears_before", ["forward", "backward", None])
def test_a_step_without_an_optimizer_ends_with_its_update(clock, hooks, how: str, clears_before: str | None) -> None:
    model = nn.Linear(8, 2)
    hooks.install([model])
    if how == "data" and clears_before is None:
        return  # nothing of PyTorch's shows this update
    for _ in range(3):
        for micro_step in range(2):
            if clears_before == "forward" and not micro_step:
                model.zero_grad()
            loss = model(torch.randn(4, 8)).sum()
            if clears_before == "backward" and not micro_step:
                model.zero_grad()
            loss.backward()
        update_by_hand(model, how)
    hooks.end_last_step_by_hand()
    assert [step.micro_steps for step in clock.finished.take()] == [2, 2, 2]


def test_sparse_gradients_end_steps_too(clock, hooks) -> None:
    """They have no address. Every training is asked about its gradients until its optimizer steps first."""
    model = nn.Embedding(100, 8, sparse=True)
    hooks.install([model])
    for _ in range(3):
        model.zero_grad()
        model(torch.arange(4)).sum().backward()
        with torch.no_grad():
            model.weight.add_(model.weight.grad, alpha=-0.1)
    hooks.end_last_step_by_hand()
    assert [step.micro_steps for step in clock.finished.take()] == [1, 1, 1]


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_ends_no_step_by_hand(clock, hooks, reentrant: bool) -> None:
    """Within a backward pass gradients are written to, and modules are called."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    hooks.install([model, *model])
    for _ in range(2):
        for _ in range(2):
            x = torch.randn(4, 8, requires_grad=True)
            hidden = torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=reentrant)
            model[1](hidden).sum().backward()
        update_by_hand(model, "weight")
        model.zero_grad()
    hooks.end_last_step_by_hand()
    assert [step.micro_steps for step in clock.finished.take()] == [2, 2]


def test_gradients_that_are_dropped_end_no_step_where_there_is_an_optimizer(clock, hooks) -> None:
    """The first steps of a GradScaler are skipped, say."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    for skipped in (True, True, False):
        model(torch.randn(4, 8)).sum().backward()
        if not skipped:
            optimizer.step()
        optimizer.zero_grad()
    assert [step.micro_steps for step in clock.finished.take()] == [3]


@pytest.mark.parametrize(("kind", "first"), [(torch.optim.AdamW, 4), (torch.optim.SGD, 1)])
def test_steps_continue_where_the_optimizers_state_was_saved(clock, hooks, kind, first: int) -> None:
    """SGD does not count its steps."""

    def made() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(8, 2)
        return model, kind(model.parameters(), lr=0.1)

    model, optimizer = made()
    for _ in range(3):
        train_once(model, optimizer)
    checkpoint = pickle.loads(pickle.dumps(optimizer.state_dict()))
    model, optimizer = made()
    optimizer.load_state_dict(checkpoint)
    hooks.install([model])
    train_once(model, optimizer)
    other = nn.Linear(8, 2)
    train_once(other, torch.optim.AdamW(other.parameters()))
    train_once(model, optimizer)
    assert [step.number for step in clock.finished.take()] == [first, first + 1]


class ActorCritic(nn.Module):
    """Its own forward is never called: a method calls its children, as reinforcement learning does."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Sequential(nn.Linear(8, 2), nn.Tanh()), nn.Linear(8, 1)

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return self.actor(x).sum() + self.critic(x).sum()


def test_forward_passes_of_parts_that_a_method_calls_are_detected(clock, hooks) -> None:
    model = ActorCritic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    for _ in range(3):
        with torch.no_grad():
            model.act(torch.randn(4, 8))
        model.act(torch.randn(16, 8)).backward()
        optimizer.step()
    _, second, third = map(phases_of, clock.finished.take())
    assert second == ["data", "forward", "backward", "optimizer"], "all that built the graph counts as forward"
    assert third == ["data", "eval", "forward", "backward", "optimizer"]
    assert clock.batch.rows == 16
    assert not module_calls.listens_to_all
    assert len(hooks.roots) == 1, "a part is no model"


def test_a_part_within_a_call_of_its_model_begins_nothing(clock, hooks) -> None:
    """A loop that calls a part in one step and the model in the next: the batch is that of the outermost call."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten(0), nn.Unflatten(0, (32, 2)), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])

    def step(call) -> None:
        call().sum().backward()
        optimizer.step()

    for _ in range(3):
        step(lambda: model[3](torch.randn(32, 2)))
    step(lambda: model(torch.randn(8, 8)))
    assert phases_of(clock.finished.take()[-1]) == ["data", "forward", "backward", "optimizer"]
    assert clock.batch.rows == 8


def test_what_builds_a_graph_without_a_module_is_the_forward(clock, hooks) -> None:
    weight = nn.Parameter(torch.ones(8, 2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    hooks.install()
    for _ in range(2):
        (torch.randn(4, 8) @ weight).sum().backward()
        optimizer.step()
    assert [phases_of(step) for step in clock.finished.take()] == [["forward", "backward", "optimizer"]] * 2


def test_evaluation_without_gradients_is_its_own_phase(clock, hooks) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    train_once(model, optimizer)
    with torch.no_grad():
        model(torch.randn(4, 8))
    train_once(model, optimizer)
    assert phases_of(clock.finished.take()[1]) == ["data", "eval", "forward", "backward", "optimizer"]


def test_a_teacher_in_the_midst_of_a_step_belongs_to_the_step(clock, hooks) -> None:
    student, teacher = nn.Linear(8, 2), nn.Linear(8, 2)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    hooks.install([student, teacher])
    x = torch.randn(4, 8)
    out = student(x)
    with torch.no_grad():
        target = teacher(x)
    (out - target).square().sum().backward()
    optimizer.step()
    assert "eval" not in phases_of(clock.finished.take()[0])


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_by_checkpointing_is_no_second_forward(clock, hooks, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    x = torch.randn(4, 8, requires_grad=True)
    checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    optimizer.step()
    (step,) = clock.finished.take()
    assert step.micro_steps == 1
    assert phases_of(step)[-2:] == ["backward", "optimizer"]
    assert phases_of(step).count("forward") <= 1


def test_a_closure_marks_its_own_forward_and_backward(clock, hooks) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    hooks.install([model])

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().sum()
        loss.backward()
        something_else_runs()
        return loss

    optimizer.step(closure)
    (step,) = clock.finished.take()
    assert phases_of(step) == ["other", *["forward", "backward", "optimizer"] * 2], (
        "its history is the optimizer's work"
    )


def test_loading_between_micro_steps_is_data_and_not_backward(clock, hooks) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(16, 8)), batch_size=4)):
        model(batch).sum().backward()
        if number % 2:
            optimizer.step()
    second = clock.finished.take()[1]
    assert phases_of(second) == ["data", "forward", "backward", "data", "forward", "backward", "optimizer"]


def test_a_model_made_before_attach_is_found_without_being_named(clock, hooks) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install()
    hooks.models.find_at_attach()
    train_once(model, optimizer)
    assert "forward" in phases_of(clock.finished.take()[0])
    assert model in hooks.roots and model[0] not in hooks.roots


def test_the_rows_of_the_newest_batch_are_known_in_its_backward(clock, hooks) -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 2)

        def forward(self, x=None, **more):
            return self.layer(torch.zeros(1, 8) if x is None else x)

    model, recurrent = Sized(), nn.LSTM(8, 4)
    hooks.install([model, recurrent])
    seen = []
    for call in (
        lambda: model(torch.zeros(5, 8)),
        lambda: model(x=torch.zeros(7, 8), mask=None),
        lambda: model(text="no tensor"),
        lambda: recurrent(torch.zeros(9, 3, 8))[0],
    ):
        call().sum().backward()
        seen.append(clock.batch.rows)
    assert seen == [5, 7, None, 3]


def test_the_largest_input_of_a_step_and_of_the_one_before_is_known(clock, hooks) -> None:
    """Of forwards with gradients: an evaluation's batch says nothing of the training's."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    for rows in (4, 6, 2):
        model(torch.zeros(rows, 8)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model(torch.zeros(64, 8))
    model(torch.zeros(3, 8))
    assert (clock.batch.latest, clock.batch.largest) == ((id(model), (3, 8)), {id(model): (3, 8)})
    assert clock.batch.largest_before == {id(model): (6, 8)}


def test_a_step_with_an_attempt_that_failed_shows_no_need_of_its_inputs(clock, hooks) -> None:
    """A loop that skips a batch for lack of memory goes on within the same step."""

    class TooLarge(nn.Linear):
        def forward(self, x):
            if len(x) > 100:
                raise RuntimeError("CUDA out of memory.")
            return super().forward(x)

    model = TooLarge(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    seen = []
    for rows in (4, 200, 6):
        with contextlib.suppress(RuntimeError):
            model(torch.zeros(rows, 8)).sum().backward()
            optimizer.step()
            seen.append(dict(clock.batch.largest_before))
    assert seen == [{id(model): (4, 8)}, {}]
    model(torch.zeros(6, 8)).sum().backward()
    optimizer.step()
    assert clock.batch.largest_before == {id(model): (6, 8)}, "the next step is a whole one"


def test_the_size_of_other_arguments_beside_the_first_is_known(clock, hooks) -> None:
    """Of each forward with gradients, and the most of the step before."""

    class Caption(nn.Linear):
        def forward(self, picture, words=None, *, weights=None, layers=1):
            return super().forward(picture)

    model = Caption(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    seen = []
    for words, weights in ((torch.zeros(4, 16), None), (torch.zeros(4, 2), torch.zeros(4, 2)), (None, None)):
        model(torch.zeros(4, 8), words, weights=weights).sum().backward()
        seen.append(clock.batch.latest_beside)
    assert [one.numbers for one in seen] == [2.0, 0.5, 0.0]
    optimizer.step()
    with torch.no_grad():
        model(torch.zeros(4, 8), torch.zeros(4, 64))
    model(picture=torch.zeros(4, 8), words=torch.zeros(4, 8))
    assert (clock.batch.beside_before, clock.batch.beside) == ({id(model): (2.0, 0)}, {id(model): (1.0, 0)})
    model(torch.zeros(4, 8), [torch.zeros(4, 8), {"more": torch.zeros(4, 8)}], layers=6)
    assert clock.batch.latest_beside == (2.0, 6), "tensors within containers, and the largest whole number"
    model(torch.zeros(4, 8), layers=8)
    assert clock.batch.latest_beside == (0.0, 0), "a dimension of a tensor says nothing new"
    assert clock.batch.beside == {id(model): (2.0, 6)}


def test_of_an_input_that_is_no_tensor_no_size_is_known(clock, hooks) -> None:
    """The size of another model's input in the same step says nothing of it."""

    class Texts(nn.Linear):
        def forward(self, texts):
            return sum(super(Texts, self).forward(one).sum() for one in texts)

    encoder, decoder = nn.Linear(8, 2), Texts(8, 2)
    hooks.install([encoder, decoder])
    encoder(torch.zeros(4, 8))
    assert clock.batch.latest == (id(encoder), (4, 8))
    decoder([torch.zeros(4, 8)])
    assert clock.batch.latest is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_no_shape_to_read(clock, hooks) -> None:
    """Its class is that of other tensors, and ``shape`` raises."""

    class Ragged(nn.Linear):
        def forward(self, first, ragged=None, layers=1):
            return super().forward(torch.zeros(4, 8))

    model, ragged = Ragged(8, 2), torch.nested.nested_tensor([torch.zeros(2), torch.zeros(6)])
    hooks.install([model])
    model(torch.zeros(4, 8), ragged, layers=6)
    assert clock.batch.latest_beside == (0.25, 6)
    model(ragged)
    assert (clock.batch.latest, clock.batch.rows, clock.phase) == (None, None, FORWARD)


def test_forwards_are_counted_from_the_last_backward_pass(clock, hooks) -> None:
    """Whoever else has entered the forward phase before the model's call, as the leak detector does for a part of a model."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    seen = []
    for _ in range(3):
        clock.enter(FORWARD)
        kept = [model(torch.zeros(4, 8)), model(torch.zeros(4, 8))]
        seen.append(clock.batch.forwards)
        sum(one.sum() for one in kept).backward()
        seen.append(clock.batch.forwards)
        optimizer.step()
    assert seen == [2, 0, 2, 0, 2, 0]


def test_a_backward_pass_of_another_thread_ends_no_forwards_of_this_one(clock, hooks) -> None:
    """Their graphs live on."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    model(torch.zeros(4, 8)).sum().backward()
    optimizer.step()
    kept = [model(torch.zeros(4, 8)) for _ in range(3)]
    other = nn.Linear(8, 2)
    beside = threading.Thread(target=lambda: other(torch.zeros(4, 8)).sum().backward())
    beside.start()
    beside.join()
    assert (len(kept), clock.batch.forwards) == (3, 3)


def test_an_evaluation_with_gradients_on_is_told_from_a_part_of_a_step(clock, hooks) -> None:
    """Behind a step of training a model in evaluation mode evaluates; in the midst of a step it is part of the loss."""
    model, features = nn.Linear(8, 8), nn.Linear(8, 8).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model, features])
    features(torch.zeros(4, 8))
    seen = [clock.batch.evaluates]
    features(model(torch.zeros(4, 8))).sum().backward()
    seen.append(clock.batch.evaluates)
    features(torch.zeros(4, 8)).sum().backward()
    seen.append(clock.batch.evaluates)
    optimizer.step()
    model.eval()
    kept = [model(torch.zeros(4, 8)) for _ in range(3)]
    assert kept and (clock.batch.evaluates, clock.batch.forwards) == (True, 3)
    model.train()(torch.zeros(4, 8)).sum().backward()
    assert [*seen, clock.batch.evaluates] == [False, False, False, False]


def test_marks_from_another_thread_are_not_heard(clock, hooks) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    train_once(model, optimizer)
    other = threading.Thread(target=lambda: model(torch.randn(4, 8)))
    other.start()
    other.join()
    assert clock.phase != FORWARD


def test_a_thread_that_only_loads_is_not_the_one_that_trains(clock, hooks) -> None:
    """A prefetcher asks its loader before anything else happens, and again when the training has been silent for long."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    batches = iter(torch.utils.data.DataLoader(torch.zeros(9, 8)))

    def prefetch() -> None:
        thread = threading.Thread(target=next, args=(batches,))
        thread.start()
        thread.join()

    for _ in range(3):
        prefetch()
        model(torch.randn(4, 8)).sum().backward()
        clock_ahead[0] += 60_000_000_000
        prefetch()
        optimizer.step()
    assert [step.number for step in clock.finished.take()] == [1, 2, 3]
    assert clock.thread == threading.get_ident()


@pytest.mark.parametrize("lives", [False, True])
def test_a_thread_that_only_inferred_is_not_the_one_that_trains(clock, hooks, lives) -> None:
    """It may serve on beside the training. One that builds graphs may be the training's while it lives."""
    model = nn.Linear(8, 2)
    hooks.install([model])
    inferred, ends = threading.Event(), threading.Event()

    def infer() -> None:
        with torch.set_grad_enabled(not lives):
            model(torch.randn(4, 8))
        inferred.set()
        if lives:
            ends.wait(60)

    thread = threading.Thread(target=infer)
    thread.start()
    assert inferred.wait(60)
    if not lives:
        thread.join()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(2):
            train_once(model, optimizer)
    finally:
        ends.set()
        thread.join()
    assert [step.number for step in clock.finished.take()] == [1, 2]
    assert clock.thread == threading.get_ident()


def test_a_backward_pass_in_a_helper_does_not_take_the_place_of_the_forward_passes_thread(clock, hooks) -> None:
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks.install([model])
    for _ in range(2):
        helper = threading.Thread(target=model(torch.randn(4, 8)).sum().backward)
        helper.start()
        helper.join()
        optimizer.step()
    assert [step.number for step in clock.finished.take()] == [1, 2]


def test_some_steps_are_left_alone_and_the_places_are_not_periodic() -> None:
    at = [0]
    clock = StepClock(now=lambda: at[0], random=Random(1))
    for _ in range(20_000):
        at[0] += 1_000_000
        clock.end_step()
    steps = clock.finished.take()
    assert all(step.watched for step in steps[:WARM_UP_STEPS])
    calm = [step.number for step in steps if not step.watched]
    starts = [number for number in calm if number - 1 not in calm]
    assert len(starts) > 10
    assert len(calm) == pytest.approx(UNWATCHED_STEPS * len(starts), abs=UNWATCHED_STEPS)
    assert len({b - a for a, b in itertools.pairwise(starts)}) > 5
    assert len([number for number in calm if number > 10_000]) < 0.02 * 10_000, "once the cost is known, few"


def test_in_every_step_phases_are_read_whatever_that_takes() -> None:
    at = [0]
    clock = StepClock(in_every_step=True, now=lambda: at[0])

    class Slow:
        def begin(self, *args) -> None:
            at[0] += 1_000_000

        def end_step(self, *args) -> None: ...

    clock.breakdown = Slow()
    for _ in range(500):
        clock.enter(FORWARD)
        clock.end_step()
    assert all(step.watched for step in clock.finished.take())


@pytest.mark.parametrize("look_every", [10**9, 400])
def test_phases_are_read_less_often_where_reading_them_would_cost_too_much(look_every, monkeypatch) -> None:
    """A step of 100 µs of which 40 µs would be ours: the share of watched steps falls until the bound is kept.

    Whether a scan of 70 ms falls into a plain or into a detailed step says nothing about the step.
    """
    monkeypatch.setattr(detail_plan, "ALLOWANCE_NS", 0)
    at = [0]
    clock = StepClock(now=lambda: at[0], random=Random(2))
    enter_ns, steps = 10_000, 4000

    class Slow:
        def begin(self, *args) -> None:
            at[0] += enter_ns

        def end_step(self, *args):
            if clock.is_control_step and clock.step - looked[-1] >= look_every:
                looked.append(clock.step)
                at[0] += 70_000_000

    looked = [0]
    clock.breakdown = Slow()
    for _ in range(steps):
        for phase in (FORWARD, BACKWARD, FORWARD, BACKWARD):
            at[0] += 15_000
            clock.enter(phase)
        clock.end_step()
    watched = sum(step.watched for step in clock.finished.take()[1000:]) / (steps - 1000)
    assert 0.01 < watched < 0.1
    assert (len(looked) > 2) == (look_every < steps), "looks fell into steps that were left alone"


class TestTheModelIsTheUsers:
    """What the hooks leave in a module must not show where the module goes."""

    def test_a_copy_of_the_model_can_be_made(self, clock, hooks) -> None:
        model = nn.Linear(8, 2)
        hooks.install([model])
        copied = copy.deepcopy(model)
        assert torch.equal(copied.weight, model.weight)

    def test_a_pickled_model_loads_where_vramscope_is_not_installed(self, clock, hooks, tmp_path) -> None:
        model = nn.Linear(8, 2)
        hooks.install([model])
        (tmp_path / "model").write_bytes(pickle.dumps(model))
        script = (
            "import sys, pickle, torch; sys.modules['vramscope'] = None; "
            f"m = pickle.load(open({str(tmp_path / 'model')!r}, 'rb')); print(m(torch.ones(1, 8)).shape)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
        assert "torch.Size([1, 2])" in done.stdout, done.stderr

    def test_compiling_the_hooked_model_makes_one_graph_and_no_recompilation(self, clock, hooks) -> None:
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph

        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
        hooks.install([model])
        compiled = torch.compile(model, backend=backend)
        for _ in range(3):
            compiled(torch.randn(4, 8)).sum().backward()
        assert len(graphs) == 1

    def test_the_compiled_model_is_found_after_the_first_step(self, clock, hooks) -> None:
        model = nn.Linear(8, 2)
        compiled = torch.compile(model, backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hooks.install()
        hooks.on_first_step = hooks.models.find_if_unheard
        for _ in range(3):
            train_once(compiled, optimizer)
        assert "forward" in phases_of(clock.finished.take()[2])

    def test_nothing_is_kept_alive(self, clock, hooks) -> None:
        model = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hooks.install([model])
        train_once(model, optimizer)
        watched = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model.weight)]
        del model, optimizer
        gc.collect()
        assert [reference() for reference in watched] == [None, None, None]

    def test_removal_puts_every_function_back(self, clock) -> None:
        from torch.utils.data import dataloader

        watched = torch.autograd.backward, dataloader._BaseDataLoaderIter.__next__, nn.Module._call_impl
        before = [function.__code__ for function in watched]
        hooks = LoopHooks(clock)
        extend(hooks)
        model = nn.Linear(8, 2)
        hooks.install([model])
        assert all(map(is_watched, watched))
        assert not model._forward_pre_hooks and not model._forward_hooks
        hooks.remove()
        assert [function.__code__ for function in watched] == before

    def test_numbers_are_the_same_to_the_bit(self, clock) -> None:
        def weights(watched: bool) -> list[torch.Tensor]:
            torch.manual_seed(7)
            model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 2))
            optimizer = torch.optim.AdamW(model.parameters())
            hooks = LoopHooks(clock)
            extend(hooks)
            if watched:
                hooks.install([model])
            for _ in range(50):
                train_once(model, optimizer, micro_steps=2)
            hooks.remove()
            return [parameter.detach().clone() for parameter in model.parameters()]

        assert all(torch.equal(a, b) for a, b in zip(weights(False), weights(True), strict=True))
