"""The simulator does what PyTorch's allocator does: every address, every statistic, after every operation.

``test_random_programs.py`` draws the operations at random; here are single cases.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from comparison import difference, difference_from_the_middle
from scripts import Script, draw

MIB = 1 << 20


@pytest.mark.gpu
@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:64"])
def test_a_replay_begins_in_the_middle_of_a_history(conf: str, asked: Any):
    """With a snapshot's segments and blocks, and when they were made, the rest is the same to the byte."""
    for seed in range(4):
        result = replace(draw(seed), conf=conf, total_mib=81079, fraction=None)
        # (what a snapshot does not tell: which pools nobody uses, and unmapped pages at an expandable segment's beginning)
        result.steps = [step for step in result.steps if step[0] not in ("drop_pool", "empty")]
        assert difference_from_the_middle(result, asked, 1000) == "", f"seed {seed}"


@pytest.mark.gpu
def test_who_asks_another_python_need_not_have_torch(asked: Any) -> None:
    """The nightly job has none: what comes out of the oracle is pickled, and its own types would ask for it."""
    assert type(asked.version) is str


# ---- single ones: what random programs meet too rarely ----


def script(conf: str, *steps: tuple[Any, ...], total_mib: int = 81079, fraction: float | None = None) -> Script:
    return Script(0, conf, total_mib, fraction, streams=2, async_us=0, steps=list(steps))


def allocs(*sizes: float, first: int = 0) -> list[tuple[Any, ...]]:
    """Sizes in MiB."""
    return [("alloc", first + i, int(size * MIB), 0, 0) for i, size in enumerate(sizes)]


def frees(*items: int) -> list[tuple[Any, ...]]:
    return [("free", item) for item in items]


GROWING = [step for i in range(0, 150, 3) for step in (*allocs(91, 45.5, 2, first=i), *frees(i, i + 1))]

CASES = {
    "each size class": script("", *[("alloc", i, n, 0, 0) for i, n in enumerate([1, 512, 513, MIB, MIB + 1, 9 * MIB])]),
    "the edges of a segment of its own": script(
        "", *[("alloc", i, n, 0, 0) for i, n in enumerate([10 * MIB - 1, 10 * MIB, 11 * MIB, 10 * MIB + 1])]
    ),
    "a remainder of 1 MiB is not split off": script("", *allocs(30), *frees(0), *allocs(29, first=1)),
    "a remainder of more is": script("", *allocs(30), *frees(0), ("alloc", 1, 29 * MIB - 512, 0, 0)),
    "equal sizes": script("", *allocs(30, 30, 30, 30), *frees(2, 0, 3, 1), *allocs(30, 30, 30, 30, first=4)),
    "divisions": script("roundup_power2_divisions:4", ("alloc", 0, 43_634_602, 0, 0)),
    "oversize": script(
        "max_split_size_mb:100", *allocs(300), *frees(0), *allocs(50, 279, first=1), *allocs(290, first=3)
    ),
    "oversize beside larger segments": script(
        "max_split_size_mb:100,large_segment_size_mb:64", *allocs(300), *frees(0), *allocs(236, 237, first=1)
    ),
    "pages that are unmapped leave a piece behind": script(
        "expandable_segments:True", *allocs(30, 30), *frees(0), *allocs(75, first=2), total_mib=620
    ),
    "mapped pages pass the limit": script("expandable_segments:True", *allocs(41), total_mib=1024, fraction=0.05),
    "a pass of the collector is finished": script(
        "garbage_collection_threshold:0.3",
        *allocs(*[60] * 8),
        *frees(*range(8)),
        *allocs(70, first=8),
        total_mib=2048,
        fraction=0.45,
    ),
    "several oversize blocks are given back, and do not suffice": script(
        "max_split_size_mb:64", *allocs(100, 101, 102, 300), *frees(0, 1, 2), *allocs(330, first=4), total_mib=1200
    ),
    "out of memory, then less": script("", *allocs(300, 300, 300, 10), total_mib=1200),
    "two holes are filled": script(
        "expandable_segments:True", *allocs(40, 20, 40, 20, 40), *frees(0, 2, 4), ("empty",), *allocs(200, first=5)
    ),
    "max_split with expandable segments grows": script("max_split_size_mb:128,expandable_segments:True", *GROWING),
    "a request is rejected although cached memory is free": script(
        "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5",
        *allocs(300),
        *frees(0),
        *allocs(400, first=1),
        total_mib=1200,
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_case_of_its_own_replays_to_the_byte(case: str, asked: Any):
    assert difference(CASES[case], asked) == ""
