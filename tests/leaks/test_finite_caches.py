"""A cache whose keys come from a finite set is no leak, however its keys are distributed; one whose keys never end is one."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

import pytest
import torch

from vramscope.leaks.autograd.graph_walk import NodeBudget
from vramscope.leaks.holders import wording
from vramscope.leaks.holders.holder_bytes import group_of
from vramscope.leaks.holders.key import HolderKey, HolderKind
from vramscope.leaks.schedule import ScanSchedule
from vramscope.leaks.verdict.judge import Judge
from vramscope.leaks.verdict.scan_context import ScanContext
from vramscope.leaks.verdict.states import Reason

KEY = HolderKey(HolderKind.LOCAL, "train", "train.py", "cache")
Draw = Callable[[random.Random], int]


def uniform(number: int) -> Draw:
    return lambda rng: rng.randrange(number)


def skewed(number: int) -> Draw:
    """Zipf's law: a few words are frequent, most are rare."""
    weights = list(itertools.accumulate(1 / rank for rank in range(1, number + 1)))
    return lambda rng: rng.choices(range(number), cum_weights=weights)[0]


def reports(draw: Draw, of_step: int, steps: int, seed: int) -> Iterator[int]:
    """Steps in which the cache was called a leak while the program ran, or when it ended."""
    at_the_end = False
    rng, schedule, cache = random.Random(seed), ScanSchedule(), dict[int, torch.Tensor]()
    judge = Judge(lambda: schedule.number)
    for step in range(1, steps + 1):
        before = len(cache)
        for _ in range(of_step):
            key = draw(rng)
            if key not in cache:
                cache[key] = torch.zeros(1024)
        is_due = schedule.end() or bool(schedule.suspicion)
        if len(cache) > before:
            schedule.suspect("memory after each step rises")
        if not is_due:
            continue
        schedule.followed()
        holder = wording.nameless_holder(KEY, "cache", "local 'cache' of train()", [], "train.py", 3, "train")
        holder = holder._replace(container=True, keyed=True, looked_up=True, named=True, size=len(cache))
        group = group_of(holder, list(cache.values()), {}, NodeBudget())
        at_the_end = False
        for verdict in judge.judge([group], group.held_bytes, context(step), step):
            if verdict.waits is None:
                yield step
            at_the_end = verdict.reason is not Reason.STILL_MORE and not verdict.keys_recur
        schedule.plan(True, None)
    if at_the_end:
        yield steps


def context(step: int) -> ScanContext:
    return ScanContext(
        step=step,
        boundaries=list(range(0, 10 * step, 10)),
        fresh=True,
        optimizer=1,
        optimizers=frozenset((1,)),
        evaluating=False,
        last_backward=10 * step,
        kept_iterations=0,
        old_graphs=0,
        ages_are_sure=True,
        retain_graph_at=None,
        evaluated_batches=0,
        complete=True,
        per="step",
        input_elements=0,
        epoch_ended=0,
        ends_epoch=False,
    )


@pytest.mark.parametrize(
    ("number", "of_step", "steps"),
    [
        (50, 1, 60),
        (50, 1, 400),
        (50, 4, 40),
        (300, 4, 100),
        (300, 4, 400),
        (300, 32, 30),
        (300, 32, 260),
        (1000, 32, 60),
        (1000, 32, 400),
    ],
)
@pytest.mark.parametrize("kind", [uniform, skewed])
def test_a_finite_set_of_keys_is_no_leak(kind: Callable[[int], Draw], number: int, of_step: int, steps: int) -> None:
    """Where a run draws more often than there are keys."""
    found = {seed: list(reports(kind(number), of_step, steps, seed)) for seed in range(3)}
    assert not any(found.values()), found


def test_keys_without_end_are_a_leak() -> None:
    numbers = itertools.count()
    assert list(reports(lambda rng: next(numbers), 1, 400, 0))
    again = itertools.count()
    assert list(reports(lambda rng: next(again) // 2, 1, 400, 0)), "each key twice"
    short = itertools.count()
    assert list(reports(lambda rng: next(short), 1, 90, 0)), "the run ends before the cache could be full"
