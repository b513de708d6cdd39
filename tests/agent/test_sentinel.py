"""Sentinels live as long as their graphs, whatever keeps or frees these, and the way down to the oldest node is the right one."""

import threading

import pytest
import torch
from torch import nn

from vramscope.leaks.autograd.live_graphs import CALM_ROUNDS, DESCENTS_ONE_IN, Descent, OutputGraphs, Sentinels

WIDE = torch.ones(4, 8)


def model(depth=3):
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(depth)))


def test_the_remembered_way_ends_where_looking_for_it_ends() -> None:
    net, remembers = model(), Descent()
    for _ in range(6):
        loss = net(WIDE).square().mean()
        assert remembers.oldest(loss.grad_fn) is Descent().oldest(loss.grad_fn)
    assert remembers._way, "the graphs were alike: from the third on it is remembered"


def test_a_graph_of_another_shape_is_looked_through_anew() -> None:
    nets, remembers = [model(2), model(5)], Descent()
    for number in (0, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0):
        loss = nets[number](WIDE).square().mean()
        assert remembers.oldest(loss.grad_fn) is Descent().oldest(loss.grad_fn), number


def test_a_branch_that_is_taken_now_and_then_leads_to_its_own_oldest_node() -> None:
    net, remembers = model(), Descent()
    for step in range(12):
        out = net(WIDE)
        if step % 4 == 3:
            out = WIDE.mean() * out * out.mean(dim=0)
        loss = out.mean()
        assert remembers.oldest(loss.grad_fn) is Descent().oldest(loss.grad_fn), step


def test_who_keeps_any_later_part_of_a_graph_is_counted_until_it_lets_go() -> None:
    net, sentinels, kept = model(), Sentinels(), []
    for step in range(10):
        logits = net(WIDE)
        loss = logits.square().mean()
        sentinels.place(loss, step)
        loss.backward()
        if step < 4:
            kept.append(logits)
    del logits, loss
    assert sentinels.older_than(10) == 4
    assert sentinels.older_than(3) == 3
    kept.pop()
    assert sentinels.older_than(10) == 3
    kept.clear()
    assert sentinels.older_than(10) == 0


@pytest.mark.parametrize("what", ["loss", "middle"])
@pytest.mark.parametrize("each", [1, 2, 8, 10])
def test_what_begins_to_be_kept_late_is_counted_soon(what: str, each: int) -> None:
    """Of the middle of a graph those before the first that is seen are missed: at most six."""
    net, sentinels, kept, missed = model(), Sentinels(), [], []
    for step in range(1, CALM_ROUNDS + 80):
        middle = net[0](WIDE)
        loss = net[1:](middle).square().mean()
        sentinels.place(loss, step)
        loss.backward()
        if step > CALM_ROUNDS + 20 and step % each == 1 % each:
            kept.append(loss if what == "loss" else middle)
        del middle, loss
        missed.append(len(kept) - sentinels.end_iteration(step + 1))
    assert missed[-1] == 0 if what == "loss" else 0 < missed[-1] < DESCENTS_ONE_IN
    assert missed[-10:] == missed[-1:] * 10, "once one is seen none is missed"


def test_graphs_that_nothing_walks_are_counted_once_they_are_dropped() -> None:
    net, outputs = model(), OutputGraphs()
    for _ in range(3):
        outputs.add(net(WIDE))
    assert (outputs.dropped, outputs.pending, outputs.alive) == (3, 0, False)
    kept = net(WIDE)
    outputs.add({"logits": [kept]})
    assert (outputs.dropped, outputs.pending, outputs.alive) == (3, 1, True)
    outputs.walked(kept)
    assert (outputs.dropped, outputs.pending, outputs.alive) == (0, 0, True)
    del kept
    assert (outputs.dropped, outputs.alive) == (0, False), "it was built before that backward, which may have walked it"


def test_a_graph_may_be_freed_by_another_thread() -> None:
    net, outputs, sentinels, kept = model(), OutputGraphs(), Sentinels(), []
    for step in range(50):
        out = net(WIDE)
        outputs.add(out)
        sentinels.place(out.sum(), step)
        kept.append(out)
    del out
    freeing = threading.Thread(target=kept.clear)
    freeing.start()
    freeing.join()
    assert (sentinels.older_than(50), outputs.dropped, outputs.alive) == (0, 50, False)
