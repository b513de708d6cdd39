"""What the graph watch must never do to a training: change it, keep it alive, break it, or stall it."""

import contextlib
import copy
import gc
import sys
import textwrap
import threading
import weakref
from typing import ClassVar

import pytest
import torch
import warm
from scans import watched
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vramscope.integrations.plain import connect
from vramscope.leaks import memory_after_step, schedule
from vramscope.leaks.autograd import graph_walk
from vramscope.leaks.detector import LeakDetector
from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.scan import paths, referrers
from vramscope.leaks.scan import scanner as scanner
from vramscope.leaks.scan.find_holders import find_holders
from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import Costs, TimeBudget
from vramscope.process import frames, name_roots
from vramscope.process.module_calls import module_calls
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks


def model(width=64):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))


# -- numerics ------------------------------------------------------------------------------------------------------------


def plain(net, x, y):
    return F.cross_entropy(net(x), y)


def autocast(net, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(net(x), y)


def reentrant(net, x, y):
    return F.cross_entropy(checkpoint(net, x.requires_grad_(), use_reentrant=True), y)


def not_reentrant(net, x, y):
    return F.cross_entropy(checkpoint(net, x, use_reentrant=False), y)


def penalised(net, x, y):
    out = net(x.requires_grad_())
    (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return F.cross_entropy(out, y) + (gradient.norm(dim=1) - 1).square().mean()


def beside_a_target(net, x, y):
    """The first graph is dropped: in some steps it is marked, and the marks are called in the other."""
    target = net(x).detach()
    return F.cross_entropy(net(x), y) + target.square().mean()


OPTIMIZERS = {
    "sgd": lambda net: torch.optim.SGD(net.parameters(), 0.1, momentum=0.9),
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), 1e-2),
    "rmsprop": lambda net: torch.optim.RMSprop(net.parameters(), 1e-3),
}


def train(loss_of, make, *, compiled=False, steps=50):
    """50 steps of a loop that leaks on purpose, so that looks and suspicions happen in it; the weights at its end."""
    net = model()
    optimizer = make(net)
    called = torch.compile(net, backend="aot_eager") if compiled else net
    kept = []
    for _ in range(steps):
        x, y = torch.randn(16, 32), torch.randint(0, 10, (16,))
        loss = loss_of(called, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(loss)
    return [parameter.detach().clone() for parameter in net.parameters()], torch.get_rng_state()


@pytest.mark.parametrize(
    ("loss_of", "optimizer", "compiled"),
    [
        (plain, "sgd", False),
        (plain, "adamw", False),
        (plain, "rmsprop", False),
        (autocast, "adamw", False),
        (reentrant, "sgd", False),
        (not_reentrant, "sgd", False),
        (penalised, "adamw", False),
        (beside_a_target, "sgd", False),
        (plain, "adamw", True),
        (beside_a_target, "adamw", True),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_the_weights_are_bitwise_the_same(loss_of, optimizer, compiled):
    bare, bare_random = train(loss_of, OPTIMIZERS[optimizer], compiled=compiled)
    with watched() as scans:
        seen, seen_random = train(loss_of, OPTIMIZERS[optimizer], compiled=compiled)
    assert scans[-1].leaks, "the loop leaks: something should have been scanned"
    assert all(torch.equal(a, b) for a, b in zip(bare, seen, strict=True))
    assert torch.equal(bare_random, seen_random)


def test_higher_derivatives_and_two_optimizers_go_on_as_without():
    def run():
        torch.manual_seed(0)
        a, b = model(), nn.Linear(10, 1)
        first, second = torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), 0.1)
        for _ in range(20):
            x = torch.randn(8, 32, requires_grad=True)
            out = b(a(x)).sum()
            (g,) = torch.autograd.grad(out, x, create_graph=True)
            (h,) = torch.autograd.grad(g.square().sum(), x, create_graph=True)
            first.zero_grad()
            second.zero_grad()
            (h.square().mean() + out).backward()
            first.step()
            second.step()
        return [p.detach().clone() for p in (*a.parameters(), *b.parameters())]

    bare = run()
    with watched():
        seen = run()
    assert all(torch.equal(one, other) for one, other in zip(bare, seen, strict=True))


def test_the_check_of_in_place_changes_stays_on():
    with watched():
        w = torch.randn(4, requires_grad=True)
        y = w * 2
        z = (y * y).sum()
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.backward()


# -- nothing is kept alive -----------------------------------------------------------------------------------------------


A_LONG_TIME = 20.0
"""Seconds for a scan that a test needs complete, even on a busy machine and with a large heap."""


def scan():
    with pytest.MonkeyPatch.context() as patch:  # variables of what other tests loaded lead to more than usual
        patch.setattr(paths, "MOST_OBJECTS", 10**9)
        return find_holders(TensorKinds(), TimeBudget(A_LONG_TIME))


def test_a_collection_that_is_due_is_not_taken_for_time_of_the_look() -> None:
    """It is the training's own, runs before or after, and may take longer than a scan may."""
    seconds, scanner = [0.0], Scanner(TensorKinds(), A_LONG_TIME)
    scanner._costs = Costs(clock=lambda: seconds[0])

    def collects(phase: str, info: object) -> None:
        seconds[0] += 100

    before = gc.get_threshold()
    gc.callbacks.append(collects)
    gc.set_threshold(1)
    try:
        looked = scanner.scan(0, lambda optimizer: False, None)
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collects)
    assert seconds[0] >= 100, "it came"
    assert looked.seconds == 0


@pytest.fixture
def no_collection():
    """What is freed is freed by its last reference, not by a collection that happens to run."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def some(*shape):
    """A tensor large enough to be counted."""
    return torch.zeros(*shape, 64, 64)


def test_what_a_model_is_given_for_its_call_alone_is_not_searched_for_in_the_whole_process(monkeypatch):
    """A scan made five passes over all objects before."""

    class Drain(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model()

        def forward(self, batch, *, more):
            return self.net(batch["x"]) + more[0]["y"].sum()

    searched = []
    upwards = referrers._old_ancestors

    def spied(tensors, *others):
        searched.extend(tuple(tensor.shape) for tensor in tensors)
        return upwards(tensors, *others)

    monkeypatch.setattr(referrers, "_old_ancestors", spied)
    with watched() as scans:
        net = Drain()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        only_c_knows = iter([some(1)] * 100)
        for _ in range(30):
            out = net({"x": torch.randn(1024, 32)}, more=[{"y": some(2)}])
            out.sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            next(only_c_knows)
        assert len(scans) >= 4
    assert set(searched) <= {(1, 64, 64)}


def test_what_another_thread_lets_go_of_meanwhile_is_no_cycle(no_collection):
    """Only the scan holds it then. An object that nobody else holds was taken for a cycle of garbage."""

    class Round:
        def __init__(self):
            self.tensor = some(3)
            self.itself = self

    Round()
    tensors = [some(1)]
    tensors += (one.tensor for one in gc.get_objects() if type(one) is Round)
    answers, _ = referrers.trace(tensors, Codes(), TimeBudget(5.0))
    assert [(answer.cyclic, [tuple(one.shape) for one in answer.tensors]) for answer in answers] == [
        (True, [(3, 64, 64)])
    ]


def test_a_look_keeps_no_tensor_alive(no_collection):
    def work():
        kept = [torch.randn(8, requires_grad=True) * 2 for _ in range(5)]
        loss = kept[0].sum()
        references = [weakref.ref(tensor) for tensor in (*kept, loss)]
        sight = scan()
        assert any(group.holder.name == "kept" for group in sight.groups)
        del kept, loss
        return sight, references

    sight, references = work()
    assert [reference() for reference in references] == [None] * 6
    assert sight.groups  # and it is still there itself


class Gate(torch.autograd.Function):
    """Keeps a tensor as an attribute of its context, which is a Python object that the graph owns."""

    @staticmethod
    def forward(ctx, x, note):
        ctx.gate = x.sigmoid()
        note(ctx, "ctx")
        note(ctx.gate, "ctx.gate")
        return x * ctx.gate

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.gate, None


@pytest.mark.parametrize("way", ["del", "walked twice", "kept for a step"])
def test_a_look_lengthens_nobodys_life(no_collection, way):
    """Contexts of custom Functions, their attributes, results: each dies at the moment at which it dies without looks."""

    def deaths(watch):
        torch.manual_seed(0)
        died, references, now = [], [], ""

        def note(thing, name):
            references.append(weakref.ref(thing, lambda _: died.append((now, name))))

        def moment(name, *, scan=True):
            nonlocal now
            now = name
            if scan and watch is not None:
                watch._scan(name, fresh=True, evaluating=False)

        net = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(5):
            hidden = net(torch.randn(4, 8))
            moment(f"{step} built")
            out = Gate.apply(hidden, note)
            loss = out.sum()
            for thing, name in ((hidden, "hidden"), (out, "out"), (loss, "loss")):
                note(thing, name)
            moment(f"{step} backward")
            loss.backward(retain_graph=way == "walked twice")
            moment(f"{step} walked")
            optimizer.step()
            optimizer.zero_grad()
            if way == "del":
                moment(f"{step} deleted", scan=False)
                del loss, out, hidden
            moment(f"{step} end")
        return died

    deaths(None)  # (PyTorch loads a part of itself with the first step, and keeps what it was called with)
    bare = deaths(None)
    with watched():
        seen = deaths(LeakDetector(StepClock(), report=[].append))
    assert sorted(seen) == sorted(bare)
    assert {name for _, name in bare} == {"ctx", "ctx.gate", "hidden", "out", "loss"}


def test_nor_any_other_object(no_collection):
    """A list of all young objects that is one of them would hold them, and itself."""

    class Thing:
        pass

    things = [Thing() for _ in range(3)]
    references = [weakref.ref(thing) for thing in things]
    scan()
    del things
    assert [reference() for reference in references] == [None] * 3


def test_a_variable_deleted_after_the_look_is_freed_at_once(no_collection):
    x = torch.randn(100)
    reference = weakref.ref(x)
    scan()
    del x
    assert reference() is None


def test_the_users_own_locals_stay_what_they_are():
    x = torch.randn(3)
    mine = locals()
    scan()
    assert mine["x"] is x
    names = sorted(name for name in mine if not name.startswith("@py"))
    assert names in (["x"], ["mine", "x"], ["mine", "names", "x"])


def test_a_generator_and_a_dead_frame_are_left_as_they_were():
    def produce():
        held = torch.randn(64, 64)
        yield held.sum()
        yield held

    generator = produce()
    next(generator)
    scan()
    assert next(generator).shape == (64, 64)


def test_frames_under_a_debugger_are_not_touched():
    if not frames.LOCALS_ARE_COPIED:
        pytest.skip("from Python 3.13 on there is nothing to touch")
    x = torch.randn(3)

    def tracer(*_):
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        sys._getframe().f_trace = tracer
        found = [
            root.name for tier in name_roots.roots() for root in tier if root.owner == sys._getframe().f_code.co_name
        ]
    finally:
        sys._getframe().f_trace = None
        sys.settrace(before)
    assert "x" not in found
    assert x.shape == (3,)


def test_the_users_gc_settings_and_garbage_are_left_alone():
    class Knot:
        def __init__(self):
            self.me = self
            self.tensor = torch.randn(256, 256)

    enabled, threshold = gc.isenabled(), gc.get_threshold()
    gc.disable()
    gc.set_debug(0)
    garbage = list(gc.garbage)
    try:
        with watched() as scans:
            collections = [generation["collections"] for generation in gc.get_stats()]
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            for _ in range(20):
                Knot()
                net(torch.randn(4, 32)).sum().backward()
                optimizer.step()
        assert [leak.kind for leak in scans[-1].leaks] == ["cycle"]
        assert "Knot" in scans[-1].leaks[0].name
        assert gc.get_debug() == 0 and not gc.isenabled() and gc.garbage == garbage
        assert [generation["collections"] for generation in gc.get_stats()] == collections
    finally:
        gc.set_threshold(*threshold)
        if enabled:
            gc.enable()


# -- nothing breaks ------------------------------------------------------------------------------------------------------


def run_apart(script: str) -> str:
    done = warm.run(textwrap.dedent(script), timeout=120)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


def test_a_chain_of_sixty_thousand_steps_is_freed_without_a_crash():
    """The wrappers of such a chain, all made, overflow the stack when it is freed (PyTorch 2.12 and later)."""
    script = """
        import torch
        from vramscope.guard import guard
        from vramscope.leaks import schedule
        from vramscope.leaks.detector import LeakDetector
        from vramscope.integrations import plain
        from vramscope.steps.clock import StepClock
        from vramscope.steps.hooks import LoopHooks

        guard.raise_faults = True
        schedule.MOST_SECONDS = 1e9  # every requested scan, as on the fastest machine
        clock, looks = StepClock(), []
        hooks = LoopHooks(clock)
        hooks.graphs = LeakDetector(clock, report=looks.append)
        hooks.install()
        plain.connect(None, hooks)

        def train():
            w = torch.ones(1, requires_grad=True)
            optimizer = torch.optim.SGD([w], 1e-9)
            h, total = torch.zeros(1), 0
            for step in range(60_000):
                h = h * 0.5 + w
                loss = h.sum()
                total = total + loss
                hooks.graphs.before_walk(loss)
                if step % 20 == 0:
                    torch.autograd.backward(w.sum())
                    optimizer.step()
            del h, loss, total

        train()
        hooks.remove()
        print("freed", len(looks))
    """
    assert run_apart(script).startswith("freed")


def test_what_was_walked_of_a_chain_counts_until_it_dies():
    chains, w = graph_walk.Chains(), torch.ones(1, requires_grad=True)
    h = w * 1
    for _ in range(graph_walk.MOST_CHAINED):
        h = h + w
    chains.step_numbers = 10
    seen = [graph_walk.walk(h.grad_fn, graph_walk.NodeBudget(chains, nodes=10**6))]
    for _ in range(20):
        h = h + w
        seen.append(graph_walk.walk(h.grad_fn, graph_walk.NodeBudget(chains, nodes=10**6)))
    nodes = [graph.nodes for graph in seen]
    assert nodes[0] > graph_walk.MOST_CHAINED // 4 and not seen[0].complete
    assert nodes == sorted(nodes, reverse=True), "ever shorter parts"
    assert nodes[-1] >= graph_walk.LEAST_CHAINED
    assert 0 < chains.wrapped < graph_walk.MOST_CHAINED + 20 * graph_walk.LEAST_CHAINED
    del h, seen
    assert chains.wrapped == 0


def test_of_a_sum_over_many_steps_all_is_told_and_not_the_part_that_was_walked():
    """``total += loss``: each scan visits a shorter part of the chain, and knows its length from earlier scans."""
    net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    total = torch.zeros(())
    with watched() as scans:
        for _ in range(420):
            x = torch.randn(32, 32)
            loss = plain(net, x, torch.zeros(32, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total = total + net(x).sigmoid().square().mean()
    found = [leak for leak in scans[-1].leaks if leak.name == "total"]
    assert [leak.kind for leak in found] == ["growing"]
    a_step = (
        4 * 32 * (32 + 64 + 64 + 10 + 10)
    )  # the batch, what either layer gave, the sigmoid's result, and its input of square
    assert found[0].age_steps == found[0].count == scans[-1].step - 1
    assert 0.8 * a_step <= found[0].growth_bytes_per_step <= 1.2 * a_step
    assert 0.8 * a_step * found[0].count <= found[0].held_bytes <= 1.2 * a_step * found[0].count


@pytest.mark.parametrize("kept", ["moving averages", "a shadow of each weight"])
def test_values_that_are_carried_side_by_side_are_told_whole(kept):
    """Of long graphs a scan visits a part, the newest first. It followed the first one only, and reported 0.1 of 5 MiB."""
    net = nn.Sequential(nn.Linear(32, 256), nn.Sigmoid(), nn.Linear(256, 32))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    averages, size = {"loss": torch.zeros(()), "spread": torch.zeros(())}, 4 * 64 * (32 + 256 + 32)
    if kept != "moving averages":
        averages = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
        size = 2 * 4 * (2 * 32 * 256 + 256 + 32)
    with watched() as scans:
        for step in range(160):
            x = torch.randn(64, 32)
            y = net(x)
            optimizer.zero_grad()
            F.mse_loss(y, x).backward()
            optimizer.step()
            if kept == "moving averages":
                values = {"loss": F.mse_loss(net(x), x), "spread": net(x).var()}
                for name, value in values.items():
                    averages[name] = averages[name] + (value - averages[name]) / (step + 1)
                del values
            else:
                for name, parameter in net.named_parameters():
                    gap = (parameter - averages[name]).abs().sqrt()
                    averages[name] = averages[name] + 0.001 * gap
                del gap
            del y
    (leak,) = [leak for leak in scans[-1].leaks if leak.name == "averages"]
    assert leak.kind == "growing"
    # (what one step adds, measured over the looks in which all of it was still walked)
    early = next(leak for scan in scans for leak in scan.leaks if leak.name == "averages" and leak.count >= 12)
    assert early.held_bytes >= size
    a_step = early.growth_bytes_per_step
    assert leak.held_bytes == pytest.approx(early.held_bytes + a_step * (leak.count - early.count), rel=0.1)
    assert leak.growth_bytes_per_step == pytest.approx(a_step, rel=0.1)


def test_what_two_losses_of_a_step_share_counts_once():
    """Both keep the trunk's activations; of the many graphs some are walked, and what they share is shared by the others too."""
    trunk, heads = nn.Sequential(nn.Linear(32, 256), nn.ReLU()), nn.ModuleList(nn.Linear(256, 8) for _ in range(2))
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.01)
    kept = {"left": [], "right": []}
    with watched() as scans:
        for _ in range(110):
            hidden = trunk(torch.randn(64, 32))
            losses = [head(hidden).sigmoid().mean() for head in heads]
            optimizer.zero_grad()
            for loss, name in zip(losses, kept, strict=True):
                loss.backward(retain_graph=True)
                kept[name].append(loss)
            optimizer.step()
    (found,) = (leak for leak in scans[-1].leaks if leak.kind == "growing")
    steps = found.count // 2
    assert found.name == "kept" and steps >= 90
    assert found.held_bytes == pytest.approx(steps * 4 * 64 * (32 + 256 + 2 * 8), rel=0.1)


class Swish(torch.autograd.Function):
    """Keeps two results of its own; the one that it returns gets the graph that keeps both."""

    @staticmethod
    def forward(ctx, x):
        ctx.gate = torch.sigmoid(x)
        ctx.result = x * ctx.gate
        ctx.nested = [[[torch.ones(256, 10)]]]
        return ctx.result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.gate + ctx.result * (1 - ctx.gate))


def test_of_a_contexts_attributes_the_one_that_leads_back_is_named():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    gc.disable()  # their number at a scan is not random
    with watched() as scans, contextlib.ExitStack() as after:
        after.callback(gc.enable)
        for _ in range(40):
            loss = Swish.apply(net(torch.randn(256, 32))).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (cycle,) = scans[-1].leaks
    assert (cycle.kind, cycle.name) == ("cycle", "Swish.result")
    assert cycle.line == Swish.forward.__code__.co_firstlineno + 3
    assert cycle.held_bytes == pytest.approx(cycle.count * 256 * 10 * 4, rel=0.1)
    assert "save_for_backward" in cycle.advice


def test_models_of_trainings_that_are_over_are_kept_by_whoever_has_them(monkeypatch):
    """Beside hooks of the agent on each of them, through which its own tensors hang on the user's variable."""
    kept = {}

    def training(rate):
        net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32))
        optimizer = torch.optim.Adam(net.parameters(), lr=rate)
        for _ in range(25):
            loss = net(torch.randn(8, 32)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        kept[rate] = net, optimizer

    monkeypatch.setattr(schedule, "MOST_SECONDS", 1e9)  # every requested scan, as on the fastest machine
    # And a floor of each step, however long the tests before made the heap.
    monkeypatch.setattr(memory_after_step, "HEAP_SHARE", 1.0)
    with watched() as scans:
        for number in range(14):
            training(number * 1e-4)
    (found,) = (leak for leak in scans[-1].leaks if leak.kind == "tensor-growth")
    assert found.name == "kept" and "vramscope" not in " ".join(found.chain)
    assert "whole models" in found.advice and "state_dict()" in found.advice
    held = 4 * sum(
        weight.nbytes for weight in next(iter(kept.values()))[0].parameters()
    )  # weights, gradients, two moments
    assert 0.9 * held * 11 <= found.held_bytes <= held * 14


def test_calls_without_gradients_come_first_and_what_comes_then_is_found_all_the_same():
    """An evaluation that keeps its graphs, with an optimizer that waits."""
    net = model().eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with watched() as scans:
        net.eval()  # shows it, where it was made before attach
        with torch.no_grad():
            for _ in range(10):
                net(torch.randn(64, 32))
        scores = [net(torch.randn(64, 32)) for _ in range(30)]
    (found,) = scans[-1].leaks
    assert (found.kind, found.per) == ("growing-eval", "batch")
    assert scores and optimizer, "both live until here"
    graph = 64 * (64 + 64 + 10) * 4  # of the ReLU, the Linear behind it and what is given
    assert 0.5 * graph <= found.growth_bytes_per_step <= 2 * graph, "a call, not one of the calls before too"


def test_weights_that_are_changed_by_hand_behind_an_evaluation_train_in_steps():
    net, losses = model().eval(), []
    with watched() as scans:
        net.eval()
        with torch.no_grad():
            for _ in range(10):
                net(torch.randn(64, 32))
        for _ in range(40):
            loss = net(torch.randn(64, 32)).square().mean()
            loss.backward(retain_graph=True)
            with torch.no_grad():
                for weight in net.parameters():
                    weight -= 0.1 * weight.grad
                    weight.grad = None
            losses.append(loss)
    (found,) = scans[-1].leaks
    assert (found.kind, found.name, found.per) == ("growing", "losses", "step")


def test_graphs_of_one_step_are_walked_whatever_chains_there_are():
    chains, w = graph_walk.Chains(), torch.ones(1, requires_grad=True)
    chains.wrapped, chains.step_numbers = 10 * graph_walk.MOST_CHAINED, 300
    h = w * 1
    for _ in range(250):
        h = h + w
    graph = graph_walk.walk(h.grad_fn, graph_walk.NodeBudget(chains))
    assert graph.complete and graph.nodes >= 251
    assert chains.wrapped == 10 * graph_walk.MOST_CHAINED


def test_a_training_on_another_thread_is_watched_there():
    found = []

    def work():
        with watched() as scans:
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            losses = []
            for _ in range(20):
                loss = net(torch.randn(4, 32)).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss)
        found.extend(scans[-1].leaks)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ("growing", "losses") in [(leak.kind, leak.name) for leak in found]


class Hostile:
    """Whatever it is asked, it answers with an error or an effect."""

    touched: ClassVar[list] = []

    def __init__(self):
        self.__dict__["held"] = [torch.randn(8, requires_grad=True) * 2]

    def __getattr__(self, name):
        Hostile.touched.append(name)
        raise RuntimeError(name)

    def __repr__(self):
        Hostile.touched.append("repr")
        raise RuntimeError("repr")

    def __eq__(self, other):
        Hostile.touched.append("eq")
        raise RuntimeError("eq")

    def __hash__(self):
        Hostile.touched.append("hash")
        raise RuntimeError("hash")

    def __len__(self):
        Hostile.touched.append("len")
        raise RuntimeError("len")

    def __iter__(self):
        Hostile.touched.append("iter")
        raise RuntimeError("iter")

    @property
    def __class__(self):
        Hostile.touched.append("class")
        raise RuntimeError("class")


def test_nothing_of_a_hostile_objects_own_code_runs():
    strange = Hostile()
    keyed = {("a", 1): strange}
    Hostile.touched.clear()
    sight = scan()
    assert Hostile.touched == []
    assert any(group.holder.name == "strange.held" for group in sight.groups), [g.holder.name for g in sight.groups]
    assert keyed


def test_nor_where_it_is_a_global_of_the_users_module():
    """A scan searches globals for tensors, classes and functions. Each search asks what the object is."""
    globals()["STRANGE"] = Hostile()
    Hostile.touched.clear()
    try:
        sight = scan()
        assert Hostile.touched == []
    finally:
        del globals()["STRANGE"]
    assert any(group.holder.name == "STRANGE.held" for group in sight.groups), [g.holder.name for g in sight.groups]


class Guarded(type):
    """A metaclass that lets nobody ask its classes for anything."""

    def __getattribute__(cls, name):
        raise RuntimeError(name)


def test_classes_are_read_past_their_metaclass():
    class Strange(metaclass=Guarded):
        pass

    strange = Strange()
    strange.held = [torch.randn(8, requires_grad=True) * 2]
    globals()["STRANGE_CLASS"] = Strange
    try:
        sight = scan()
    finally:
        del globals()["STRANGE_CLASS"]
    assert any(group.holder.name == "strange.held" for group in sight.groups), [g.holder.name for g in sight.groups]


def test_of_a_long_list_all_elements_count_though_not_all_are_looked_at():
    kept = [torch.zeros(64) for _ in range(10_000)]
    (group,) = [group for group in scan().groups if group.holder.name == "kept"]
    assert group.tensors == len(kept)
    assert group.held_bytes == group.bytes_beside(set()) == sum(tensor.nbytes for tensor in kept)


class Sample:
    """Some have a tensor, most have none."""


def test_of_a_long_list_with_holes_as_many_count_as_there_are():
    samples = [Sample() for _ in range(10_000)]
    for at in [*range(3), *range(2_000, 9_000, 70)]:
        samples[at].embedding = torch.zeros(4096)
    found = scan()
    assert "samples" in [group.holder.name[:7] for group in found.groups], found
    (group,) = [group for group in found.groups if group.holder.name.startswith("samples")]
    assert group.tensors == 103
    assert group.held_bytes == 103 * 4096 * 4


class Traced(torch.Tensor):
    """A tensor class that sees each operation on its tensors, as wrappers of quantised weights do."""

    seen: ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_tensor_class_of_the_users_sees_the_same_operations_as_without():
    """Looks, sentinels and the judgement of outputs ask tensors; its ``__torch_function__`` hears none of it."""

    def run():
        torch.manual_seed(0)
        net = nn.Linear(8, 8)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        kept = []
        Traced.seen.clear()
        for _ in range(20):
            loss = net(torch.randn(64, 8).as_subclass(Traced)).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(loss)
        return list(Traced.seen), kept

    bare, _ = run()
    with watched() as scans:
        seen, _ = run()
    assert [(leak.kind, leak.name) for leak in scans[-1].leaks] == [("growing", "kept")]
    assert seen == bare


def test_lists_and_dicts_with_methods_of_the_users_are_read_through_the_built_in_ones():
    class Liar(list):
        def __iter__(self):
            raise RuntimeError("iter")

        def __len__(self):
            raise RuntimeError("len")

    class Cache(dict):
        def items(self):
            raise RuntimeError("items")

    liar = Liar([some(4)])
    cache = Cache(a=some(5))
    names = {group.holder.name for group in scan().groups}
    assert {"liar", "cache['a']"} <= names
    assert list.__len__(liar) == dict.__len__(cache) == 1


def test_a_function_without_source_a_lambda_and_a_partial_are_named():
    scope = {"some": some, "scan": scan}
    exec(
        compile("def cell():\n    history = [some(4)]\n    return scan(), history\n", "<ipython-input-1-ab>", "exec"),
        scope,
    )
    sight, _ = scope["cell"]()
    group = next(group for group in sight.groups if group.holder.name == "history")
    assert (group.holder.file, group.holder.line) == ("<ipython-input-1-ab>", 2)

    import functools

    keep = functools.partial(lambda x, y: y, some(6))
    closure = (lambda tensor: lambda: tensor)(some(7))
    words = [group.holder.words for group in scan().groups]
    assert any("'keep'" in text and ".args" in text for text in words), words
    assert any("'closure'" in text and "closure 'tensor'" in text for text in words), words
    assert callable(keep) and callable(closure)


def test_a_container_that_changes_under_the_look_is_no_error():
    growing = {"go": True}
    shared: dict = {}

    def churn():
        number = 0
        while growing["go"]:
            number += 1
            shared[number % 5_000] = number
            if number % 3 == 0:
                shared.pop(number % 4_999, None)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(5):
            scan()
    finally:
        growing["go"] = False
        thread.join()


def test_paths_are_found_through_what_people_write():
    import collections
    import dataclasses

    @dataclasses.dataclass
    class Record:
        value: object

    class Slotted:
        __slots__ = ("value",)

    slotted = Slotted()
    slotted.value = torch.zeros(1)
    Point = collections.namedtuple("Point", "x y")
    things = {
        "record": Record(torch.zeros(2)),
        "slotted": slotted,
        "point": Point(torch.zeros(3), 1),
        "nested": {"a": [{"b": (torch.zeros(4),)}]},
        "queue": collections.deque([torch.zeros(5)], maxlen=9),
    }
    wanted = {id(t) for t in (things["record"].value, slotted.value, things["point"].x, things["queue"][0])}
    wanted.add(id(things["nested"]["a"][0]["b"][0]))
    source = [name_roots.Root("local", name, value, None, None, None, "f") for name, value in things.items()]
    found = paths.find([source], wanted, TimeBudget(5.0))
    words = {"".join(link.label for link in path.links()) for path in found.paths.values()}
    assert found.complete
    assert words == {"record.value", "slotted.value", "point.x", "nested['a'][*]['b'][*]", "queue[*]"}


# -- what wraps, evaluates, or is no module ------------------------------------------------------------------------------


def test_a_teachers_eval_is_no_forward_of_the_model_that_was_named():
    net, teacher = model(), model()
    hooks = LoopHooks(StepClock())
    hooks.install()
    connect(net, hooks)
    try:
        teacher.eval()
        assert list(hooks.roots) == [net]
    finally:
        hooks.remove()


def test_an_evaluation_of_a_function_of_tensors_is_seen_without_any_module():
    """JAX's way: a function and a list of weights. No module's hook hears it; the loader's batches do."""
    torch.manual_seed(0)
    weights = [torch.randn(64, 256, requires_grad=True), torch.randn(256, 10, requires_grad=True)]

    def classify(x):
        return (x @ weights[0]).relu() @ weights[1]

    dataset = torch.utils.data.TensorDataset(torch.randn(64 * 40, 64))
    with watched() as scans:
        outputs = []
        for (x,) in torch.utils.data.DataLoader(dataset, batch_size=64):
            outputs.append(classify(x))
    assert ("outputs", True) in [(leak.name, leak.kind.startswith("growing")) for leak in scans[-1].leaks]


def train_parts(steps):
    """A model whose own forward is never called; returns whether the calls of all modules were listened to as each step began."""
    parts = nn.ModuleDict({"encoder": nn.Linear(32, 8), "decoder": nn.Linear(8, 32)})
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)
    x, waiting = torch.randn(4, 32), []
    for step in range(steps):
        waiting.append(module_calls.listens_to_all)
        decoded = parts["decoder"](parts["encoder"](x))
        assert module_calls.listens_to_all == (step == 0)
        optimizer.zero_grad()
        decoded.sum().backward()
        optimizer.step()
    return [*waiting, module_calls.listens_to_all]


def test_all_modules_are_listened_to_only_while_something_waits():
    """Nothing of it is left when the session ends, and there is never a hook in PyTorch's own lists.

    Until the first backward pass, a call of an unknown model is waited for. Later a scan waits for the next forward pass.
    """
    with watched() as scans:
        assert [at for at, waits in enumerate(train_parts(10)) if waits] == [0, 2, 3, 7]
    assert len(scans) == 2
    with watched():
        assert train_parts(2)[-1]
        assert not nn.modules.module._global_forward_pre_hooks
    assert not module_calls.listens_to_all


def test_of_what_grows_on_the_cpu_no_fall_of_a_peak_is_promised():
    """Nobody counts peaks there; the graphs' nodes say what .detach() would free."""
    trained, outputs = model(), []
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
    with watched() as scans:
        for _ in range(24):
            outputs.append(trained(torch.randn(8, 32)))
            outputs[-1].sum().backward()
            optimizer.step()
    (leak,) = scans[-1].leaks
    assert leak.kind == "growing" and leak.held_bytes
    assert leak.peak_effect_bytes is None and "no peaks on the CPU" in leak.peak_effect
    assert "of host memory in autograd nodes" in leak.advice


def test_a_cycle_that_no_collector_sees_is_found_by_what_it_holds():
    """``backward(create_graph=True)`` on copies: gradient, graph and parameter refer to each other in C++."""
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)

    def probe(x, cleared):
        copied = copy.deepcopy(trained)
        copied(x).pow(2).sum().backward(create_graph=True)
        if cleared:
            for parameter in copied.parameters():
                parameter.grad = None

    for cleared in (False, True):
        with watched() as scans:
            for _ in range(40):
                x = torch.randn(8, 32)
                probe(x, cleared)
                trained(x).sum().backward()
                optimizer.step()
        found = [(leak.kind, leak.name, leak.function) for leak in scans[-1].leaks]
        assert found == ([] if cleared else [("cycle", "param.grad", "probe")])


def test_a_leak_that_slows_down_is_told_with_the_figures_of_now():
    """One in each step, then one in every second: no new pace to report, and no growth that has ended."""
    net, kept = model(), []
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def train(steps, every):
        for step in range(steps):
            x = torch.randn(512, 32)
            plain(net, x, torch.zeros(512, dtype=torch.long)).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % every == 0:
                kept.append(x.detach())

    with watched() as scans:
        train(60, 1)
        train(60, 2)
    counts = [leak.count for scan in scans for leak in scan.leaks if leak.kind == "tensor-growth"]
    assert counts == sorted(counts)
    assert counts[-1] > 70, counts


def test_what_an_evaluation_adds_a_batch_is_not_thinned_by_the_steps_before_it(monkeypatch):
    """Two evaluations lie many steps apart, and what grows in them was divided by these: 102 of 366 KiB a batch."""
    monkeypatch.setattr(schedule, "MOST_SECONDS", 60.0)  # on a busy machine, too
    net = model(width=256)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with watched() as scans:
        for _ in range(3):
            for _ in range(25):
                loss = F.cross_entropy(net(torch.randn(8, 32)), torch.zeros(8, dtype=torch.long))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total = torch.zeros(())
            net.eval()
            for _ in range(30):
                total = total + F.cross_entropy(net(torch.randn(64, 32)), torch.zeros(64, dtype=torch.long))
            net.train()
            assert float(total) > 0
            del total
    (leak,) = [leak for scan in scans for leak in scan.leaks if leak.kind == "growing-eval"][-1:]
    each = 64 * (32 + 256 + 10) * 4 + 64 * 8  # the batch, what ReLU gave, the log-probabilities, the targets
    assert leak.per == "batch"
    assert leak.growth_bytes_per_step == pytest.approx(each, rel=0.1)


def test_a_graph_that_leads_to_one_that_was_built_once_does_not_grow():
    """An autocast around the whole loop keeps the copies of weights that it makes in the first step, each with its graph."""
    net = model(width=256)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with watched() as scans, torch.autocast("cpu", torch.bfloat16):
        for _ in range(48):
            x = torch.randn(512, 32)
            loss = F.mse_loss(net(x).float(), torch.randn(512, 10))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [leak.kind for scan in scans for leak in scan.leaks if leak.kind == "growing"] == []


def test_a_modules_globals_are_no_container_whoever_has_them():
    """``python -m train`` runs a function of Python's own that has a variable for them."""
    names = globals()
    assert [root for tier in name_roots.roots() for root in tier if root.value is names] == []
    assert "names" not in {root.name for tier in name_roots.roots() for root in tier if root.kind == "local"}
    del names


def test_what_takes_many_calls_of_a_model_grows_by_its_part_in_each():
    """An image is made in six steps: what it keeps of its graphs is six batches' growth, not one's."""
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32)).eval()
    images = []
    with watched() as scans:
        for _ in range(8):
            image = torch.randn(64, 32)
            for _ in range(6):
                image = image - 0.1 * net(image)
            images.append(image)
    (leak,) = [leak for leak in scans[-1].leaks if leak.name == "images"]
    each = 64 * (32 + 256) * 4  # what net is given, and what ReLU gave
    assert leak.kind == "growing-eval" and leak.per == "batch"
    assert leak.growth_bytes_per_step == pytest.approx(each, rel=0.1)


def test_a_graph_that_nothing_named_holds_has_the_place_where_it_is_built(tmp_path):
    """In a process of its own: who holds it is asked of all objects there are, and what is worth a word goes by all tensors."""
    script = """
        import torch
        from torch import nn
        from torch.nn import functional as F
        from vramscope.leaks import schedule
        from vramscope.leaks import detector as watch
        from vramscope.steps.clock import StepClock
        from vramscope.steps.hooks import LoopHooks
        from vramscope.integrations.plain import connect

        schedule.MOST_SECONDS = 60.0  # on a busy machine, too
        looks, clock = [], StepClock()
        hooks = LoopHooks(clock)
        hooks.graphs = watch.LeakDetector(clock, report=looks.append, seconds=20.0)
        hooks.install()
        connect(None, hooks)
        net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
        optimizer = torch.optim.SGD(net.parameters(), 0.01)

        def loss_of(rows):
            return F.cross_entropy(net(torch.randn(rows, 32)), torch.zeros(rows, dtype=torch.long))

        def validated():
            return sum(loss_of(128) for _ in range(8)).item()

        for _ in range(4):
            for _ in range(3):
                optimizer.zero_grad()
                loss_of(8).backward()
                optimizer.step()
            net.eval()
            validated()
            net.train()
        hooks.remove()
        for look in looks:
            for leak in look.leaks:
                print(leak.kind, leak.name, leak.function)
    """
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(script))
    output = run_apart(f"import runpy; runpy.run_path({str(file)!r}, run_name='__main__')")
    assert "no_grad-missing unknown loss_of" in output.splitlines(), output
