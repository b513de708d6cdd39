"""Properties of downsampling: no peak is lost, no value is invented, unknown is not zero, stacks add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope_server.analysis.series.downsample import GAP_BUCKETS, at_peak, divide, envelope, with_holes

values_of = st.lists(st.one_of(st.just(-1), st.integers(0, 1 << 62)), min_size=1, max_size=400)


@st.composite
def windows(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    values = np.array(draw(values_of), np.int64)
    gaps = draw(st.lists(st.integers(0, 1 << 40), min_size=values.size, max_size=values.size))
    x = 1_790_000_000_000_000_000 + np.cumsum(np.array(gaps, np.int64))
    return x, values, draw(st.integers(1, 300))


@given(windows())
@settings(max_examples=300, deadline=None)
def test_buckets_cover_every_row_once_within_the_limit(window: tuple[np.ndarray, np.ndarray, int]) -> None:
    x, _, buckets = window
    found = divide(x, buckets)
    assert found.starts[0] == 0
    assert (np.diff(found.starts) > 0).all()
    assert found.middle.size == found.filled.size <= buckets
    assert int(found.filled.sum()) == found.starts.size
    assert (np.diff(found.middle) >= 0).all()


@given(windows())
@settings(max_examples=300, deadline=None)
def test_the_lowest_and_highest_known_values_of_each_bucket_are_kept(
    window: tuple[np.ndarray, np.ndarray, int],
) -> None:
    x, values, buckets = window
    starts = divide(x, buckets).starts
    found = envelope(values, starts)
    for i, part in enumerate(np.split(values, starts[1:])):
        known = part[part != -1]
        assert bool(found.known[i]) == bool(known.size)
        if known.size:
            assert found.min[i] == known.min()
            assert found.max[i] == known.max()
            assert known.min() <= found.mean[i] <= known.max()
            assert found.mean[i] == pytest.approx(sum(known.tolist()) / known.size, rel=1e-9, abs=1)
        else:
            assert (found.min[i], found.mean[i], found.max[i]) == (-1, -1, -1)
    assert found.max.max() == values.max(), "no peak is lost"


@given(windows())
@settings(max_examples=200, deadline=None)
def test_stack_shows_the_peak_row_of_each_bucket(window: tuple[np.ndarray, np.ndarray, int]) -> None:
    x, total, buckets = window
    starts = divide(x, buckets).starts
    row = np.arange(total.size)
    found = at_peak(total, {"row": row, "total": total}, starts)
    assert found["row"].size == starts.size
    for start, end, at in zip(starts, np.append(starts[1:], total.size), found["row"], strict=True):
        assert start <= at < end
        assert total[at] == total[start:end].max()
    assert (found["total"] == envelope(total, starts).max).all()


def test_buckets_have_equal_width_and_know_their_middle() -> None:
    found = divide(np.arange(100), 10)
    assert found.starts.tolist() == list(range(0, 100, 10))
    assert found.middle.tolist() == [4.5 + 10 * i for i in range(10)]


def test_pause_is_one_hole_and_jitter_is_none() -> None:
    x = np.concatenate([np.arange(100), np.arange(900, 1000)])
    found = divide(x, 100)
    assert int((~found.filled).sum()) == 1
    hole = int(np.flatnonzero(~found.filled)[0])
    assert 99 < found.middle[hole] < 900
    assert np.isnan(with_holes(np.ones(found.starts.size), found, np.nan)[hole])
    jitter = np.cumsum(np.random.default_rng(0).choice([1, GAP_BUCKETS - 1], 200))
    assert divide(jitter, int(jitter[-1])).filled.all()


def test_one_row_and_equal_times_are_divided_too() -> None:
    assert divide(np.array([5]), 10).starts.tolist() == [0]
    assert divide(np.full(50, 7), 10).starts.tolist() == [0]
    for nothing in (np.empty(0, np.int64), np.arange(3)):
        with pytest.raises(ValueError):
            divide(nothing, 0 if nothing.size else 5)
