"""Graphs of a step that no backward visits are distinguished from those that one does, and none lives longer because of it."""

import weakref

import pytest
import torch
from torch import nn

from vramscope.leaks.autograd import saved_tensors
from vramscope.leaks.autograd.dropped_graphs import StepGraphs
from vramscope.leaks.autograd.graph_walk import Chains
from vramscope.leaks.holders import line_search
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.process import frames
from vramscope.steps.clock import StepClock

X = torch.ones(64, 32)
SAVED = 64 * 256 * 4
"""Bytes of the hidden layer's output."""


@pytest.fixture(autouse=True)
def listening():
    """As of a detector: before PyTorch 2.10 only what is saved afterwards is read."""
    saved_tensors.saved.listen()


def network():
    return nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 4))


class Steps:
    """Steps that are followed, each with one call of the target and what is then done with its result."""

    def __init__(self):
        self.found, self.withdrawn = [], []
        self.chains = Chains()
        self.unwalked = StepGraphs(StepClock(), TensorKinds(), self.chains, self.found.append, self.withdrawn.append)
        self.net, self.target = network(), network()
        self.walks = 0

    def step(self, use=lambda result: None, given=X, since=0):
        """The target's call is always this one line; ``use`` gives what is to be walked, or nothing."""
        known = {one.untyped_storage()._cdata: 1 for one in self.target.parameters()}
        self.unwalked.begin(known, 1024, since)
        result = self.target(given)
        self.unwalked.follow(self.target, (given,), result, self.walks)
        loss = self.net(X).sum()
        extra = use(result)
        self.walks += 1
        (loss if extra is None else loss + extra).backward()
        self.unwalked.end_step([])
        del result, loss, extra
        self.unwalked.settle(self.walks)


def test_what_nothing_walks_in_two_steps_is_found_with_what_it_saved():
    steps = Steps()
    steps.step()
    assert not steps.found, "one step is no proof"
    steps.step()
    (found,) = steps.found
    assert (found.saved_bytes, found.origin.module, found.origin.function) == (SAVED, "Sequential", "step")


@pytest.mark.parametrize(
    "use",
    [
        lambda result: result.sum(),
        lambda result: (result * 2).square().mean(),
        lambda result: torch.autograd.grad(result.sum(), X_NEEDED, retain_graph=True)[0].sum() * 0,
    ],
    ids=["the loss", "a part of the loss", "a gradient within the step"],
)
def test_what_is_walked_is_no_finding(use):
    steps = Steps()
    for _ in range(3):
        steps.step(use, given=X_NEEDED)
    assert not steps.found


X_NEEDED = X.clone().requires_grad_()


def test_an_inner_result_that_is_walked_is_walked_in_the_graph_of_the_output():
    steps, inner = Steps(), []
    steps.target[1].register_forward_hook(lambda module, args, output: inner.append(output))
    for _ in range(3):
        steps.step(lambda result: inner.pop().sum())
    assert not steps.found


def test_what_is_walked_later_is_withdrawn():
    steps = Steps()
    steps.step()
    steps.step()
    steps.step(lambda result: result.sum())
    assert steps.withdrawn == [steps.found[0].origin]


def test_what_lives_on_is_left_to_the_looks():
    steps, kept = Steps(), []
    for _ in range(3):
        steps.step(lambda result: kept.append(result))
    assert not steps.found


def test_what_goes_on_in_an_earlier_steps_graph_is_not_weighed():
    steps = Steps()
    steps.step()
    carried = (X @ torch.ones(32, 32, requires_grad=True)).tanh()
    steps.step(given=carried, since=torch._C._autograd._get_sequence_nr())
    assert not steps.found


def test_an_evaluation_is_not_told_call_by_call():
    steps = Steps()
    for _ in range(3):
        steps.unwalked.begin({}, 1024, 0)
        for _ in range(3):
            result = steps.target(X)
            steps.unwalked.follow(steps.target, (X,), result, steps.walks)
        del result
        steps.unwalked.before_walk()
        steps.walks += 1
        steps.unwalked.end_step([])
        steps.unwalked.settle(steps.walks)
    assert not steps.found


def test_several_from_one_line_that_are_alive_at_the_backward_are_one_finding():
    steps = Steps()
    for _ in range(2):
        steps.unwalked.begin({one.untyped_storage()._cdata: 1 for one in steps.target.parameters()}, 1024, 0)
        results = []
        for _ in range(3):
            results.append(steps.target(X))
            steps.unwalked.follow(steps.target, (X,), results[-1], steps.walks)
        steps.unwalked.before_walk()
        steps.walks += 1
        steps.net(X).sum().backward()
        steps.unwalked.end_step([])
        results.clear()
        steps.unwalked.settle(steps.walks)
    (found,) = steps.found
    assert (found.graphs, found.saved_bytes) == (3, 3 * SAVED)


def test_of_a_comprehension_the_variable_is_told_that_gets_its_result():
    scores = [frames.user_place() for _ in range(2)]
    assert [(code.co_name, line_search.stored_on(code, line)) for code, line in scores] == [
        ("test_of_a_comprehension_the_variable_is_told_that_gets_its_result", "scores")
    ] * 2
    shares = dict(zip("ab", (frames.user_place() for _ in range(2)), strict=True))
    assert {line_search.stored_on(*place) for place in shares.values()} == {"shares"}


class Negated(nn.Module):
    def __init__(self, times):
        super().__init__()
        self.inner, self.times = network(), times

    def forward(self, x):
        x = self.inner(x)
        for _ in range(self.times):
            x = -x
        return x


@pytest.mark.parametrize(("nodes", "is_found"), [(9_000, True), (11_000, False)])
def test_a_graph_of_many_nodes_is_walked_up_to_a_bound(nodes, is_found):
    steps = Steps()
    steps.target, steps.chains.step_numbers = Negated(nodes), 2 * nodes
    steps.step()
    steps.step()
    assert bool(steps.found) == is_found


def test_no_graph_lives_longer_for_being_followed():
    steps = Steps()
    for _ in range(2):  # the second is weighed
        steps.unwalked.begin({}, 1024, 0)
        result = steps.target(X)
        steps.unwalked.follow(steps.target, (X,), result, 0)
        node = weakref.ref(result)
        mark = steps.unwalked._followed[0].mark
        del result
        assert node() is None and mark() is None
        steps.unwalked.end_step([])
        steps.unwalked.settle(1)


def test_nothing_is_marked_where_autograd_itself_is_compiled(monkeypatch):
    steps = Steps()
    import torch._dynamo.config

    steps.unwalked.begin({}, 1024, 0)
    assert steps.unwalked.follows
    monkeypatch.setattr(torch._dynamo.config, "compiled_autograd", True)
    steps.unwalked.begin({}, 1024, 0)
    assert not steps.unwalked.follows
