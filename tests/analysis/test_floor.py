"""Trend of the memory after each step on synthetic series: growth is found, and nothing else is reported as growth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope_server.analysis.array_types import FloatArray
from vramscope_server.analysis.series.trend import MIN_STEPS, Trend, lowest, theil_sen, trend, until_full, work_grows

MIB = 2.0**20
GIB = 2.0**30
STEPS = 600
SEEDS = range(60)
step = np.arange(1.0, STEPS + 1)
Made = Callable[[np.random.Generator], FloatArray]


def fitted(floor: FloatArray, x: FloatArray | None = None) -> Trend:
    found = trend(np.arange(1.0, floor.size + 1) if x is None else x, floor)
    assert found is not None
    return found


def test_process_overhead_is_no_growth_on_the_cpu() -> None:
    """On the CPU the values are the whole heap. A list that grows by 8 KiB per step is still found once it exceeds the noise."""
    x, level = np.arange(1.0, 301), 130 * MIB
    for kib_a_step, steps, growing in (
        (2.3, 40, False),
        (1.8, 100, False),
        (0.5, 300, False),
        (8, 40, False),
        (8, 120, True),
    ):
        seen = trend(x[:steps], level + x[:steps] * kib_a_step * 1024, on_host=True)
        assert seen is not None and seen.growing is growing
        on_card = trend(x[:steps], level + x[:steps] * kib_a_step * 1024)
        assert on_card is not None and on_card.growing, "to the byte there"


FLAT: dict[str, Made] = {
    "still": lambda random: np.full(STEPS, 3 * GIB),
    "noise": lambda random: 3 * GIB + random.normal(0, 5 * MIB, STEPS),
    "sequence lengths": lambda random: 3 * GIB + random.beta(5, 2, STEPS) * 300 * MIB,
    "a spike now and then": lambda random: 3 * GIB + (random.random(STEPS) < 0.05) * GIB,
    "warm-up in the first steps": lambda random: 3 * GIB + (step > 5) * GIB + random.normal(0, MIB, STEPS),
    "a jump after a fifth": lambda random: 3 * GIB + (step > 120) * GIB + random.normal(0, MIB, STEPS),
    "a jump in the middle": lambda random: 3 * GIB + (step > 300) * GIB + random.normal(0, MIB, STEPS),
    "a jump near the end": lambda random: 3 * GIB + (step > 540) * GIB + random.normal(0, MIB, STEPS),
    "falling": lambda random: 4 * GIB - step * MIB,
    **{
        f"{epochs} epochs": lambda random, epochs=epochs: 3 * GIB + (step % (STEPS / epochs)) * MIB / 2
        for epochs in (2.5, 3.3, 5, 8.7, 20)
    },
}


def filled(random: np.random.Generator, keys: int, of_step: int, steps: int, *, skewed: bool) -> FloatArray:
    """Memory beside a cache whose keys come from a finite set."""
    share = 1 / np.arange(1.0, keys + 1) if skewed else np.ones(keys)
    drawn = random.choice(keys, (steps, of_step), p=share / share.sum())
    return np.array([GIB + 4096 * np.unique(drawn[: at + 1]).size for at in range(steps)])


@pytest.mark.parametrize("skewed", [False, True])
@pytest.mark.parametrize(("keys", "of_step", "steps"), [(300, 4, 400), (300, 32, 260), (1000, 32, 60), (1000, 32, 400)])
def test_a_cache_that_fills_up_is_no_growth(keys: int, of_step: int, steps: int, skewed: bool) -> None:
    """It is not said to be level either. A few may look like growth by chance: rare keys come evenly for a while."""
    fits = [fitted(filled(np.random.default_rng(seed), keys, of_step, steps, skewed=skewed)) for seed in range(20)]
    assert sum(fit.growing for fit in fits) <= 3
    assert not any(fit.growing and fit.slows for fit in fits)
    early = fitted(filled(np.random.default_rng(0), 1000, 32, 60, skewed=skewed))
    assert early.slows


@pytest.mark.parametrize("name", FLAT)
def test_no_growth_is_never_reported_as_growth(name: str) -> None:
    for seed in SEEDS:
        found = fitted(FLAT[name](np.random.default_rng(seed)))
        assert not found.growing, (seed, found)
        assert until_full(found, GIB) == (None, None)


GROWING: dict[str, tuple[float, Made]] = {
    "a line": (MIB, lambda random: 3 * GIB + step * MIB),
    "a faint line": (2048, lambda random: 3 * GIB + step * 2048),
    "with noise": (0.1 * MIB, lambda random: 3 * GIB + step * 0.1 * MIB + random.normal(0, MIB, STEPS)),
    "with sequence lengths": (MIB, lambda random: 3 * GIB + step * MIB + random.beta(5, 2, STEPS) * 300 * MIB),
    "with epochs": (MIB, lambda random: 3 * GIB + step * MIB + (step % 60) * MIB / 2),
    "in blocks of fifty steps": (MIB, lambda random: 3 * GIB + (step // 50) * 50 * MIB),
    "after a warm-up": (MIB, lambda random: 3 * GIB + (step > 20) * 5 * GIB + step * MIB),
    "spikes besides": (MIB, lambda random: 3 * GIB + step * MIB + (random.random(STEPS) < 0.1) * GIB),
}


@pytest.mark.parametrize("name", GROWING)
def test_growth_is_found_within_its_interval(name: str) -> None:
    truth, make = GROWING[name]
    covered = 0
    for seed in SEEDS:
        found = fitted(make(np.random.default_rng(seed)))
        assert found.growing, (seed, found)
        covered += found.low <= truth <= found.high
    assert covered >= 0.95 * len(SEEDS)


@pytest.mark.parametrize("sizes", [(60,), (60, 90), (10, 20, 80, 160), (200, 100, 50, 25, 12)])
def test_a_rise_in_a_few_jumps_is_no_growth_and_said_to_be_one(sizes: tuple[int, ...]) -> None:
    """New stages and tasks do that."""
    stages = len(sizes) + 1
    height = np.concatenate([[0.0], np.cumsum(sizes)])[np.minimum((step * stages / STEPS).astype(int), stages - 1)]
    for noise in (0.0, 0.5):
        found = fitted(3 * GIB + height * MIB + np.random.default_rng(1).random(STEPS) * noise * MIB)
        assert (found.growing, found.jumps) == (False, len(sizes))
        assert until_full(found, GIB) == (None, None)


@pytest.mark.parametrize("every", [60, 75, 100, 150])
def test_jumps_of_one_size_at_equal_distances_are_growth(every: int) -> None:
    """Of each epoch, evaluation or fold something is retained."""
    found = fitted(3 * GIB + (step // every) * 60 * MIB)
    assert found.growing and not found.jumps


@pytest.mark.parametrize(("full", "steps"), [(79, 140), (100, 140), (400, 600), (500, 600)])
@pytest.mark.parametrize("low", [None, 76])
def test_a_buffer_that_is_full_is_level_since(full: int, steps: int, low: int | None) -> None:
    """One low value, as of a block that is split, does not make the rest rise."""
    x = np.arange(1.0, steps + 1)
    floor = GIB + np.minimum(x, full) * 16384 + (x >= 65) * 0.9 * MIB
    if low is not None:
        floor[low] -= 0.9 * MIB
    found = fitted(floor)
    assert not found.growing and not found.slows
    assert found.level_since is not None and abs(found.level_since - full) <= max(4, steps / 60)
    assert fitted(floor[:full]).level_since is None


def test_what_begins_late_and_is_full_is_level_too() -> None:
    """The steps before it began are no pause of the growth."""
    found = fitted(GIB + np.floor(np.clip(np.arange(130.0) - 30, 0, 60) / 3) * 65536)
    assert not found.growing and found.level_since is not None and abs(found.level_since - 90) <= 4


def test_growth_is_not_said_to_have_stopped() -> None:
    for name, (_, make) in GROWING.items():
        for seed in SEEDS:
            assert fitted(make(np.random.default_rng(seed))).level_since is None, (name, seed)


@pytest.mark.parametrize(("steps", "jumps"), [(100, 0), (120, 6)])
def test_equal_jumps_are_stages_if_the_next_one_did_not_come(steps: int, jumps: int) -> None:
    """Layers are unfrozen every 15 steps, until all are: the sixth at step 89."""
    line = GIB + np.minimum((np.arange(steps) + 1) // 15, 6) * MIB
    assert (fitted(line).growing, fitted(line).jumps) == (not jumps, jumps)


def test_a_line_with_one_high_value_or_with_noise_is_not_said_to_rise_in_jumps() -> None:
    line = 3 * GIB + step * MIB
    line[-1] += 5 * GIB
    assert fitted(line).growing and not fitted(line).jumps
    both = fitted(3 * GIB + step * MIB + (step > 300) * 4 * GIB)
    assert not both.jumps, "it is not level beside the jump"
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        for values in (random.random(100), random.normal(0, 1, 100)):
            assert not fitted(GIB + np.arange(100) * MIB + values * 100 * MIB).jumps


@given(st.floats(0, 3), st.floats(0.01, 50), st.integers(MIN_STEPS, 400), st.integers(0, 99))
@settings(deadline=None, max_examples=150)
def test_growth_below_the_scatter_is_not_reported(slope: float, noise: float, n: int, seed: int) -> None:
    """For any series: a reported slope exceeds its margin, and the line rises more than it scatters."""
    random = np.random.default_rng(seed)
    found = fitted(GIB + np.arange(n) * slope * MIB + random.normal(0, noise * MIB, n))
    assert found.margin >= found.spread_bytes / (found.last - found.first)
    if found.growing:
        assert found.low > 0
        assert found.slope * (found.last - found.first) > found.spread_bytes


def test_more_steps_detect_smaller_slopes() -> None:
    random = np.random.default_rng(0)
    margins = [fitted(GIB + random.normal(0, 5 * MIB, n)).margin for n in (50, 500, 5000)]
    assert margins[0] > 5 * margins[1] > 25 * margins[2]


def test_too_few_steps_have_no_trend() -> None:
    assert trend(np.arange(MIN_STEPS - 1.0), np.full(MIN_STEPS - 1, GIB)) is None
    assert trend(np.empty(0), np.empty(0)) is None
    unknown = np.full(100, np.nan)
    assert trend(np.arange(100.0), unknown) is None
    unknown[:23] = GIB
    assert trend(np.arange(100.0), unknown) is None, "unknown floors do not count"
    assert trend(np.full(100, 7.0), np.arange(100.0)) is None, "one step alone has no slope"


def test_unknown_values_are_ignored() -> None:
    floor = GIB + step * MIB
    floor[::3] = np.nan
    found = fitted(floor)
    assert found.points == 400
    assert found.slope == pytest.approx(MIB)


def test_line_fits_the_lowest_values() -> None:
    found = fitted(3 * GIB + step * MIB)
    assert found.at(np.array([100.0, 600.0])) == pytest.approx([3 * GIB + 100 * MIB, 3 * GIB + 600 * MIB])
    assert found.level_bytes == pytest.approx(3 * GIB + 600 * MIB)


def test_steps_left_are_available_bytes_by_slope() -> None:
    found = fitted(3 * GIB + step * MIB)
    left, soonest = until_full(found, 100 * MIB)
    assert left == pytest.approx(100)
    assert soonest is not None and left is not None and soonest <= left
    assert until_full(found, -5.0) == (0, 0)
    assert until_full(found, None) == until_full(None, GIB) == (None, None)


@given(st.lists(st.integers(0, 10**9), min_size=4, max_size=500))
def test_lowest_value_of_each_group_is_kept(values: list[int]) -> None:
    floor = np.array(values, float)
    x = np.arange(floor.size, dtype=float)
    at, low = lowest(x, floor)
    assert 1 <= low.size <= 60
    assert (np.diff(at) > 0).all()
    assert low.min() == floor.min()
    assert (floor[at.astype(int)] == low).all()


def test_median_slope_tolerates_a_quarter_of_outliers() -> None:
    x = np.arange(40.0)
    y = 2 * x + 5
    y[::4] += 1000
    slope, half = theil_sen(x, y)
    assert slope == pytest.approx(2)
    assert half >= 0
    with pytest.raises(ValueError, match="two points"):
        theil_sen(np.zeros(5), np.arange(5.0))


@pytest.mark.parametrize(
    ("ratio", "lives_on_share", "grows"),
    [(1.0, 1.0, False), (2.5, 0.0, False), (2.5, 0.8, True), (2.5, 3.0, False), (3.2, 0.0, True)],
)
def test_results_that_live_on_explain_a_rise_where_the_peaks_rise_more(
    ratio: float, lives_on_share: float, grows: bool
) -> None:
    """Outputs of longer and longer batches, which the loop's variable keeps for one more step."""
    floor, peaks = fitted(GIB + step * MIB), fitted(2 * GIB + step * MIB * ratio)
    risen = floor.slope * (floor.last - floor.first)
    assert work_grows(floor, peaks, int(lives_on_share * risen)) is grows


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("lives_on_bytes", [0, 2 << 30])
def test_stages_of_the_work_do_not_explain_a_leak_beside_them(stages: int, lives_on_bytes: int) -> None:
    """A constant leak without a holder, and batches that grow in few stages. A large result was as large before."""
    stage = np.arange(STEPS) * stages // STEPS
    floor, peaks = fitted(GIB + step * MIB / 4), fitted(4 * GIB + step * MIB / 4 + stage * 500 * MIB)
    assert floor.growing and not work_grows(floor, peaks, lives_on_bytes)


def test_three_stages_and_a_longer_end_are_no_growth() -> None:
    """Layers are unfrozen after 20, 30 and 40 steps of 60. The groups of steps make the distances look longer than they are."""
    x = np.arange(1.0, 61.0)
    memory = 20 * MIB + 12 * MIB * (x > 20) + 6 * MIB * (x > 30) + 8 * MIB * (x > 40)
    found = fitted(memory, x)
    assert found.rises_in_jumps and not found.growing


@pytest.mark.parametrize("first", range(0, 20, 3))
def test_equal_jumps_up_to_the_end_are_growth(first: int) -> None:
    """Each epoch of 20 steps leaves something behind, wherever in an epoch the run ends."""
    x = np.arange(1.0, 201.0)
    assert fitted(20 * MIB + 8 * MIB * ((x + first) // 20), x).growing
