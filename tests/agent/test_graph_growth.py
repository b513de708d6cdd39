"""A tensor that gets longer and longer, and one whose size only changes: told from looks that come ever more seldom."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Iterator

from vramscope.leaks.verdict.history import Observation, bytes_per_step, has_shrunk, lengthens

ROUNDS, LOOKS = 12, 4
KEPT = 24
"""Number of remembered readings."""


def seen(held_bytes: int, at: int) -> Observation:
    return Observation(at, at, 1, 0, held_bytes, 0, False, 0, 0, [])


def rounds_of_looks(until: int = 60_000) -> Iterator[int]:
    at = 4
    while at < until:
        yield at
        at += max(4, at // 4)


def is_ever_accused(size_at) -> bool:
    scans: list[Observation] = []
    accused = False
    for at in rounds_of_looks():
        scans.append(seen(size_at(at), at))
        del scans[:-KEPT]
        accused |= lengthens(scans, ROUNDS, LOOKS)
    return accused


def test_what_grows_with_each_step_is_found_whatever_it_began_with() -> None:
    assert is_ever_accused(lambda at: 4096 * at)
    assert is_ever_accused(lambda at: (1 << 30) + 512 * at)
    assert is_ever_accused(lambda at: 4096 * (at + random.Random(at).randrange(3))), "a little more or less a step"


def test_batches_of_changing_size_are_hardly_ever_taken_for_growth() -> None:
    """Four looks in a row rise by chance in every second such run."""
    accused = 0
    for seed in range(500):
        draw = random.Random(seed)
        accused += is_ever_accused(lambda at, draw=draw: 28_800 * draw.randrange(96, 385, 8))
    assert accused <= 10


def test_what_got_shorter_has_shrunk() -> None:
    assert not has_shrunk([seen(10, 1)])
    assert not has_shrunk([seen(10, 1), seen(10, 5), seen(20, 9)])
    assert has_shrunk([seen(10, 1), seen(20, 5), seen(19, 9)])


def test_a_step_is_a_step_of_the_training_though_an_evaluation_has_rounds_of_its_own() -> None:
    """A validation is scanned in its second batch, as round 9 after step 7: by rounds its list grew over too few."""
    scan = functools.partial(
        Observation, tensors=1, graphs=1, reach=0, overlaps=False, optimizer=0, nodes=0, references=[]
    )
    before, now = scan(step=7, iteration=9, held_bytes=200), scan(step=27, iteration=27, held_bytes=1200)
    assert bytes_per_step([before], now) == 50
    assert bytes_per_step([now], now) is None


def test_the_growth_of_what_has_filled_up_is_that_of_late() -> None:
    """A meter's window of twenty values and its total: twenty steps take bytes, all that come take nodes."""
    scans = [seen(1000 * min(at, 20) + at, at) for at in (4, 8, 12, 16, 22, 30, 42, 60)]
    assert bytes_per_step(scans[:4], scans[4]) == (20_022 - 4_004) / 18
    assert bytes_per_step(scans[:-1], scans[-1]) == 1
    steady = [seen(1000 * at, at) for at in (4, 8, 12, 16, 22, 30, 42, 60)]
    assert bytes_per_step(steady[:-1], steady[-1]) == 1000


def test_what_gets_longer_with_the_batches_is_no_growth() -> None:
    """A curriculum: each step's result is longer than the last because what the model is given is."""
    scans = [dataclasses.replace(seen(4096 * at, at), input_elements=32 * at) for at in (4, 8, 12, 16, 22, 30)]
    assert not lengthens(scans, ROUNDS, LOOKS)
    even = [dataclasses.replace(one, input_elements=32) for one in scans]
    assert lengthens(even, ROUNDS, LOOKS)
