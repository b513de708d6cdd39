"""Random programs replay to the byte: every address, every statistic, after each operation.

``fuzz.py`` beside this file does the same for hours, and with other versions of torch.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from comparison import difference, shrunk
from scripts import draw

RUNS_A_TEST = 20


def shortest_difference(seed: int, asked: Any) -> str:
    """First difference in the program of a seed, with the shortest program that shows one; "": none."""
    script = draw(seed, newer_keys=asked.profile.newer_keys)
    found = difference(script, asked)
    if not found:
        return ""
    shorter = shrunk(script, asked)
    return f"seed {seed}: {found}\nshrunk to\n{shorter}\n{difference(shorter, asked)}"


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(0, 200, RUNS_A_TEST))
def test_random_programs_of_known_seeds_replay_to_the_byte(first: int, asked: Any):
    """Streams, record_stream, private pools, limits, small devices, settings at random: 2,500 operations each."""
    for seed in range(first, first + RUNS_A_TEST):
        assert shortest_difference(seed, asked) == ""


@pytest.mark.gpu
def test_random_programs_of_fresh_seeds_replay_to_the_byte(asked: Any):
    """New seeds in each run; a failure names its seed."""
    fresh = random.SystemRandom()
    for _ in range(RUNS_A_TEST):
        assert shortest_difference(fresh.randrange(1 << 40), asked) == ""
