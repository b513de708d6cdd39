"""Each step's peaks against what PyTorch itself says in the same loop with no agent, and the splits against the tensors."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

from vramscope.protocol import series

pytestmark = pytest.mark.gpu

LOOP = textwrap.dedent(
    """
    import json, sys, torch
    from torch import nn
    watched = sys.argv[1] == "watched"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    if watched:
        from vramscope.memory.peak_counters import share_peak_counters
        from vramscope.sampling.step_blocks import step_row
        from vramscope.integrations.extensions import extend
        from vramscope.steps.clock import StepClock
        from vramscope.steps.hooks import LoopHooks
        clock = StepClock()
        hooks = LoopHooks(clock)
        extend(hooks)
        hooks.install([model])
        clock.watch(share_peak_counters().watch(0))
    peaks, users = [], []
    for step in range(60):
        rows = 64 * (1 + step * 7 % 5)
        for _ in range(1 + step % 3):
            x = torch.empty(rows, 256, device="cuda")
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not watched:
            peaks.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
            torch.cuda.reset_peak_memory_stats()
    if watched:
        # The zero_grad after a step belongs to the next one here, and to this one in the loop alone: peaks do not differ,
        # because it only frees.
        for step in clock.finished.take():
            row = step_row(step, 1, 0)
            peaks.append([row["peak_allocated_bytes"], row["peak_reserved_bytes"]])
    print(json.dumps(peaks))
    """
)


def test_each_steps_peaks_are_what_pytorch_says_without_the_agent() -> None:
    """Sixty steps of changing size and accumulation, watched and unwatched ones: equal to the byte."""

    def peaks(how: str) -> list[list[int]]:
        done = warm.run(LOOP, arguments=[how])
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    alone, watched = peaks("alone"), peaks("watched")
    # The first step alone also holds what the making of the model needed.
    assert len(alone) == len(watched) == 60
    assert watched[1:] == alone[1:]


@contextlib.contextmanager
def watched_training(width: int = 512):
    """A watched training with its categories, on the device. A workspace of cuBLAS is larger than weights 512 wide."""
    import torch
    from torch import nn

    from vramscope.integrations.extensions import extend
    from vramscope.memory.category_split import Categories
    from vramscope.memory.peak_counters import share_peak_counters
    from vramscope.steps.clock import StepClock
    from vramscope.steps.hooks import LoopHooks

    # What earlier tests left is not to go in the midst of a step, nor the workspaces of products to come in one.
    product = torch.ones(8, 8, device="cuda", requires_grad=True)
    (product @ product).sum().backward()
    del product
    gc.collect()
    # A cached block that exceeds a request by less than 1 MiB is not split, and counts whole: with an empty cache no training
    # gets such blocks of an earlier one.
    torch.cuda.empty_cache()
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(6)], nn.BatchNorm1d(width)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    clock = StepClock()
    hooks = LoopHooks(clock)
    extend(hooks)
    hooks.install([model])
    counter = share_peak_counters().watch(0)
    clock.watch(counter)
    clock.breakdown = Categories(hooks.optimizers, hooks.roots, lambda device: counter.peak_now())
    yield model, optimizer, clock
    hooks.remove()


@pytest.fixture
def training():
    with watched_training() as training:
        yield training


@pytest.fixture
def wide_training():
    with watched_training(2048) as training:
        yield training


def rounded(tensors) -> int:
    return sum(-(-t.numel() * t.element_size() // 512) * 512 for t in tensors if t.is_cuda)


def test_what_a_step_ends_with_is_counted_to_the_byte(training) -> None:
    import torch

    model, optimizer, clock = training
    for _ in range(3):
        model(torch.empty(2048, 512, device="cuda")).sum().backward()
        optimizer.step()
    at_end, _ = clock.finished.take()[-1].breakdown[0]
    assert at_end.parameters == rounded(model.parameters())
    assert at_end.gradients == rounded(p.grad for p in model.parameters())
    assert at_end.buffers == rounded(model.buffers())
    assert at_end.optimizer == rounded(v for s in optimizer.state.values() for v in s.values())


class Seldom:
    """Allows every fortieth count, whatever it costs."""

    asked = 0

    def allows(self, now_ns: int) -> bool:
        self.asked += 1
        return self.asked % 40 == 1

    def spent(self, nanoseconds: int) -> None: ...


class Always(Seldom):
    def allows(self, now_ns: int) -> bool:
        return True


class Twice:
    """The anatomy of steps, beside one that never tells a split again."""

    def __init__(self, one, other) -> None:
        self.one, self.other = one, other
        for each in (one, other):
            each._count_budget, each._peak_budget = Seldom(), Seldom()
        self.compared = []

    def begin(self, *args) -> None:
        self.one.begin(*args)
        self.other.begin(*args)

    def end_step(self, stretches, devices):
        self.other._last_splits.clear()
        split = self.one.end_step(stretches, devices)
        self.compared.append((len(stretches), split, self.other.end_step(stretches, devices)))
        return split


def test_a_step_that_is_left_alone_has_the_split_that_would_be_reckoned_anew(training) -> None:
    """Long past the warm-up, with batches of two sizes in no order."""
    import torch

    from vramscope.memory.category_split import Categories

    model, optimizer, clock = training
    recount = Categories(
        clock.breakdown._optimizers, clock.breakdown._roots, lambda device: clock.counters[0].peak_now()
    )
    clock.breakdown = both = Twice(clock.breakdown, recount)
    clock._plan = None
    sizes, some = random.Random(4), torch.empty(1 << 20, device="cuda")
    for step in range(400):
        if step % 30 == 0:  # as much is allocated as before, and it is something else
            model.register_buffer("some", some if step % 60 else None)
        optimizer.zero_grad()
        model(torch.empty(sizes.choice((1024, 2048)), 512, device="cuda")).sum().backward()
        optimizer.step()
        clock.watched = clock.step < 100 or clock.step % 8 == 0
    assert [split[0][0] for _, split, _ in both.compared] == [recount[0][0] for _, _, recount in both.compared]
    for stretches, ((_, split),), ((_, recount),) in both.compared:
        if series.UNKNOWN in recount:
            continue  # (on a busy machine a phase more is seen, of which the peak is not known)
        assert split[:4] == recount[:4] and sum(split) == sum(recount)
        # (Which of the two batches has come is not known of a step that is left alone.)
        assert abs(split.activations - recount.activations) in ((0, 1024 * 512 * 4) if stretches == 1 else (0,))
    alone = [
        split[0][1] for stretches, split, _ in both.compared if stretches == 1 and series.UNKNOWN not in split[0][1]
    ]
    assert len(alone) > 50 and len(set(alone)) > 1


def of_varying_length(training, budget, watched) -> list:
    """(step, split at its end, split at its peak) of a loop whose batches are as long as they happen to be."""
    import torch

    model, optimizer, clock = training
    clock.breakdown._count_budget, clock.breakdown._peak_budget = budget(), budget()
    clock._plan = None
    lengths = random.Random(5)
    for _ in range(90):
        kept = model(torch.empty(lengths.randrange(100, 4000), 512, device="cuda"))
        kept.sum().backward()
        optimizer.step()
        clock.watched = watched(clock.step)
        optimizer.zero_grad()
    del kept
    return [(step, *step.breakdown[0]) for step in clock.finished.take()]


def test_steps_that_are_not_counted_are_split_as_those_that_are() -> None:
    """Where no step ends or peaks as high as another, one in forty counted and one in eight with its phases read."""
    from vramscope.memory.gradient_peak import CLOSE_ENOUGH

    with watched_training() as training:
        counted = of_varying_length(training, Always, lambda step: True)
    del training
    with watched_training() as training:
        result = of_varying_length(training, Seldom, lambda step: step < 30 or step % 8 == 0)
    assert sum(not step.watched for step, *_ in result) > 50
    batch, known = 4000 * 512 * 4, 0
    for (_, end, peak), (step, told_end, told_peak) in zip(counted[10:], result[10:], strict=True):
        assert told_end == end and series.UNKNOWN not in told_end
        assert told_peak[0] == peak[0] and told_peak[2:4] == peak[2:4], "parameters, optimizer state, buffers"
        if series.UNKNOWN in told_peak:
            continue
        known += 1
        # (Of its own training: the time at which autograd's thread frees something may differ from one to the other.)
        assert sum(told_peak) == max(cut.peak_allocated_bytes for stretch in step.intervals for cut in stretch.cuts)
        off = CLOSE_ENOUGH * sum(peak)
        assert abs(told_peak.gradients - peak.gradients) <= off
        # Which batch has come is not known of a step that is left alone: it is taken to be as long as the last that was seen.
        assert abs(told_peak.activations - peak.activations) <= off + (0 if step.watched else batch)
    assert known > 30  # beyond the lengths that were followed a split is unknown, unless it is near


def test_a_split_is_not_carried_past_a_change_of_what_is_counted(training) -> None:
    import torch

    model, optimizer, clock = training
    clock.breakdown._count_budget, clock.breakdown._peak_budget = Seldom(), Seldom()
    for step in range(30):
        optimizer.zero_grad()
        if step == 25:
            model[0].requires_grad_(False)  # (its gradient is gone, and its state stays)
        model(torch.empty(100 + step, 512, device="cuda")).sum().backward()
        optimizer.step()
    ends = [step.breakdown[0][0] for step in clock.finished.take()]
    assert all(series.UNKNOWN not in end for end in ends[21:25])
    assert all(set(end) == {series.UNKNOWN} for end in ends[25:])


@pytest.mark.parametrize("graphs_on", [False, True], ids=["without gradients", "in eval mode alone"])
@pytest.mark.parametrize("calm", [False, True], ids=["phases are not read", "left alone"])
def test_the_peak_of_a_step_that_evaluates_unheard_is_not_split(training, calm: bool, graphs_on: bool) -> None:
    """It is not the training's: told as its activations and gradients it would be neither."""
    import torch

    model, optimizer, clock = training
    clock.breakdown._count_budget, clock.breakdown._peak_budget = Seldom(), Seldom()
    clock._plan = None
    for step in range(30):
        optimizer.zero_grad()
        if step == 25:
            model.eval()
            with torch.set_grad_enabled(graphs_on):
                model(torch.empty(50_000, 512, device="cuda"))
            model.train()
        model(torch.empty(4000 + step, 512, device="cuda")).sum().backward()
        optimizer.step()
        clock.watched = clock.step < 20
        clock.is_control_step = calm and not clock.watched
    known = [series.UNKNOWN not in step.breakdown[0][1] for step in clock.finished.take()[21:]]
    assert known == [step != 25 for step in range(21, 30)]


@pytest.mark.parametrize("mode", [True, False], ids=["in training mode", "trained in eval mode"])
def test_a_teacher_behind_the_forward_leaves_the_split_of_a_step_that_is_left_alone(training, mode: bool) -> None:
    import torch

    model, optimizer, clock = training
    model.train(mode)
    clock.breakdown._count_budget, clock.breakdown._peak_budget = Seldom(), Seldom()
    clock._plan = None
    for step in range(30):
        optimizer.zero_grad()
        x = torch.empty(4000 + step, 512, device="cuda")
        loss = model(x).sum()
        with torch.no_grad():
            model.eval()(x[:100])
        model.train(mode)
        loss.backward()
        optimizer.step()
        clock.watched = clock.step < 20
        clock.is_control_step = not clock.watched
    assert all(series.UNKNOWN not in step.breakdown[0][1] for step in clock.finished.take()[21:])


def test_the_split_adds_up_to_the_allocated_bytes_at_the_end_and_at_the_peak(training) -> None:
    import torch

    model, optimizer, clock = training
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.empty(2048, 512, device="cuda")).sum().backward()
        optimizer.step()
    known = 0
    for step in clock.finished.take()[2:]:
        at_end, at_peak = step.breakdown[0]
        if series.UNKNOWN not in at_end:
            assert sum(at_end) == step.intervals[-1].cuts[0].allocated_bytes
        if series.UNKNOWN not in at_peak:
            known += 1
            assert sum(at_peak) == max(s.cuts[0].peak_allocated_bytes for s in step.intervals)
    assert known > 10


def test_gradients_at_the_peak_are_those_that_were_made_by_then(training) -> None:
    """Six layers with saved inputs: the peak is at the start of backward, where next to no gradient exists."""
    import torch

    model, optimizer, clock = training
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.empty(8192, 512, device="cuda")).sum().backward()
        optimizer.step()
    step = clock.finished.take()[-1]
    _, at_peak = step.breakdown[0]
    one_layer = rounded(model[0].parameters())
    layer_output = 8192 * 512 * 4
    assert at_peak.gradients <= 2 * one_layer
    # six outputs are saved; the running operations hold a few more: the output, its gradient and the next one
    assert 6 * layer_output <= at_peak.activations <= 10 * layer_output


def test_gradients_that_stay_over_micro_steps_are_gradients_at_the_peak(training) -> None:
    import torch

    model, optimizer, clock = training
    for _ in range(4):
        for _ in range(3):
            model(torch.empty(1024, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    _, at_peak = clock.finished.take()[-1].breakdown[0]
    if at_peak.gradients != series.UNKNOWN:
        assert at_peak.gradients <= rounded(model.parameters())
        assert at_peak.gradients > 0


def test_a_forward_peak_has_the_gradients_of_the_micro_steps_before_it(training) -> None:
    """The forward of a later micro-step makes the peak, with something large that is gone before its backward."""
    import torch

    model, optimizer, clock = training
    model[0].register_forward_hook(lambda *_: (torch.empty(1 << 26, device="cuda"), None)[1])
    truth = []
    for _ in range(4):
        for _ in range(3):
            out = model(torch.empty(64, 512, device="cuda"))
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            truth.append(sum(rounded([gradient]) for gradient in gradients))
            out.sum().backward()
            del out, gradients
        optimizer.step()
        optimizer.zero_grad()
    assert truth[-1] > 0
    split = [record.breakdown[0][1] for record in clock.finished.take()]
    known = [one.gradients for one in split if one.gradients != series.UNKNOWN]
    assert known and all(one == truth[-1] for one in known)


def test_behind_a_backward_what_is_made_are_temporaries_and_gradients_in_one_bucket_count_once(training) -> None:
    """Clipping by hand, say: what stood there before the copies is none."""
    import torch

    model, optimizer, clock = training
    sizes = [parameter.numel() for parameter in model.parameters()]
    for _ in range(3):
        bucket = torch.empty(sum(sizes), device="cuda")
        views = [
            part.view_as(parameter) for part, parameter in zip(bucket.split(sizes), model.parameters(), strict=True)
        ]
        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda one, view=view: setattr(one, "grad", view))
            for parameter, view in zip(model.parameters(), views, strict=True)
        ]
        loss = model(torch.empty(64, 512, device="cuda")).sum()
        loss.backward()
        before_copies = torch.cuda.memory_allocated()
        copies = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        del copies
        for hook in hooks:
            hook.remove()
        optimizer.step()
        optimizer.zero_grad()
    _, at_peak = clock.finished.take()[-1].breakdown[0]
    assert at_peak.activations == 64 << 20
    assert at_peak.gradients == rounded([bucket])
    # What cuBLAS works in, and what tests before this one left: all that exists beside the copies and does not belong to the model.
    known = at_peak.parameters + at_peak.gradients + at_peak.optimizer + at_peak.buffers
    assert at_peak.workspaces + at_peak.other == before_copies - known


def test_what_foreach_makes_in_the_optimizer_are_temporaries(wide_training) -> None:
    """AdamW over all weights at once needs their square roots beside them; its state is none, in its first step neither."""
    import torch

    model, optimizer, clock = wide_training
    rest = []
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.empty(4, 2048, device="cuda")).sum().backward()
        rest.append(torch.cuda.memory_allocated())
        optimizer.step()
    first, *_, last = (step.breakdown[0][1] for step in clock.finished.take())
    state = rounded(v for s in optimizer.state.values() for v in s.values())
    weights = rounded(model.parameters())
    for at_peak, begin, new in ((first, rest[0], state), (last, rest[-1], 0)):
        assert 0 < at_peak.activations <= 2 * weights, "one or two of each weight, and not the state"
        assert sum(at_peak) == begin + new + at_peak.activations
        assert at_peak.optimizer == state


def test_the_state_of_an_optimizer_from_before_attach_is_no_temporary(wide_training) -> None:
    import torch

    model, _, clock = wide_training
    stranger = torch.optim.AdamW(model.parameters())  # it steps before a hook has heard of it
    step = type(stranger).step
    plainly = getattr(step, "__wrapped__", step)
    model(torch.empty(4, 2048, device="cuda")).sum().backward()
    plainly(stranger)
    clock.end_step()
    assert stranger not in clock.breakdown._optimizers
    stranger.zero_grad()
    model(torch.empty(4, 2048, device="cuda")).sum().backward()
    stranger.step()
    _, at_peak = clock.finished.take()[-1].breakdown[0]
    weights = rounded(model.parameters())
    assert at_peak.optimizer == rounded(v for s in stranger.state.values() for v in s.values())
    assert 0 < at_peak.activations <= 2 * weights


def test_what_functional_call_puts_into_a_model_is_not_asked_for_its_gradient() -> None:
    """It is the result of something, and PyTorch warns in the user's terminal who asks."""
    import torch
    from torch import nn

    from vramscope.memory.tensor_bytes import count

    class Counted(nn.Linear):
        def forward(self, inputs: Any) -> Any:
            count([], [self], 0)
            return super().forward(inputs)

    model = Counted(8, 8, device="cuda")
    adapted = {name: parameter * 2 for name, parameter in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.func.functional_call(model, adapted, (torch.zeros(1, 8, device="cuda"),))
