"""Laws of what is kept up to date: order does not matter, splitting does not matter, and the rules of states."""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vramscope.protocol import messages, series
from vramscope_server.store.durations import Durations
from vramscope_server.store.rank_summary import RankSummary, decode_summary, encode_summary
from vramscope_server.store.run_from_ranks import aggregate
from vramscope_server.store.run_states import Skew, add_sequence, run_state
from vramscope_server.store.sparkline import SPARKLINE_BUCKETS, Sparkline

SECOND = 1_000_000_000


@given(st.lists(st.integers(1_000, 10**13), min_size=1, max_size=300), st.integers(1, 5))
@settings(deadline=None)
def test_the_median_is_right_within_a_thousandth(durations: list[int], parts: int) -> None:
    counted = Durations()
    for part in np.array_split(np.array(durations, np.int64), parts):
        counted.add(part, np.ones_like(part))
    found = counted.median_ns()
    assert found is not None
    ordered = sorted(durations)
    middle = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    assert middle[0] * 0.998 <= found <= middle[1] * 1.002


def test_without_a_known_duration_there_is_no_median() -> None:
    counted = Durations()
    counted.add(np.array([-1, 0, -1]), np.ones(3, np.int64))
    assert counted.median_ns() is None


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 1 << 50)), min_size=1, max_size=200), st.integers(1, 4))
@settings(deadline=None)
def test_a_sparkline_keeps_the_peak_in_at_most_sixty_buckets(rows: list[tuple[int, int]], parts: int) -> None:
    line = Sparkline()
    for part in np.array_split(np.array(rows, np.int64), parts):
        if part.size:
            line.add(part[:, 0], part[:, 1])
    assert len(line.values) <= SPARKLINE_BUCKETS
    assert max(line.values) == max(value for _, value in rows)


Resets = st.lists(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=5) | st.none(), min_size=1, max_size=6)


@given(Resets, st.randoms())
def test_resets_by_others_are_counted_and_none_is_known_only_where_every_step_told(
    blocks: list[list[int] | None], random: Random
) -> None:
    """A block without the column: of an agent that does not tell. None: nothing was stored of the time before."""

    def counted(parts: list[list[int] | None]) -> tuple[int | None, int | None]:
        summary = RankSummary()
        for part in parts:
            rows = {"time_ns": np.arange(len(part or [0])) + 10**18, "step": np.arange(len(part or [0]))}
            rows |= {"peak_allocated_bytes": rows["step"] + 1, "duration_ns": rows["step"] + 1}
            summary.add("steps", rows if part is None else rows | {"foreign_reset": np.array(part)})
        return summary.foreign_reset_steps, summary.lower_bound_steps

    seen = [code for part in blocks if part is not None for code in part]
    resets = sum(code > 0 for code in seen)
    expected = (resets, seen.count(2)) if resets or None not in blocks else (None, None)
    shuffled = blocks[:]
    random.shuffle(shuffled)
    assert counted(blocks) == counted(shuffled) == expected


def test_a_summary_survives_being_stored() -> None:
    summary = RankSummary()
    rows = {
        "time_ns": np.arange(5) + 10**18,
        "step": np.arange(5),
        "allocated_bytes": np.arange(5),
        "reserved_bytes": np.arange(5),
    }
    summary.add("samples", rows)
    summary.add("steps", {**rows, "duration_ns": np.full(5, SECOND), "peak_allocated_bytes": np.arange(5)})
    assert decode_summary(encode_summary(summary)) == summary


def test_each_phase_has_the_highest_of_the_steps_in_which_it_was_read() -> None:
    """Block by block; a phase that no step tells is not known, and neither are those of a summary that is older."""
    summary = RankSummary()
    for evaluation in ([-1, 70, -1], [90, -1, -1]):
        rows = {"time_ns": np.arange(3), "step": np.arange(3), "backward_peak_allocated_bytes": np.array([50, 60, 55])}
        summary.add(
            "steps",
            {**rows, "eval_peak_allocated_bytes": np.array(evaluation), "data_peak_allocated_bytes": np.full(3, -1)},
        )
    assert summary.phase_peaks_bytes == {"backward": 60, "eval": 90}
    assert decode_summary(msgspec.msgpack.encode({"steps": 3})).phase_peaks_bytes == {}


def test_what_came_after_the_last_step_is_part_of_the_peaks() -> None:
    """In its phase; of a step that did not end with that step's number. Lower than a step's it changes nothing."""
    summary = RankSummary()
    rows = {"time_ns": np.arange(1, 3), "step": np.arange(1, 3), "peak_allocated_bytes": np.array([50, 60])}
    summary.add("steps", {**rows, "peak_reserved_bytes": np.array([70, 70])})
    summary.end(messages.Tail(device=0, peak_allocated_bytes=55, peak_reserved_bytes=70, phase="eval"))
    assert (summary.peak_allocated_bytes, summary.peak_place["peak_step"]) == (60, 2)
    summary.end(messages.Tail(device=0, peak_allocated_bytes=90, peak_reserved_bytes=100, phase="eval"))
    assert (summary.peak_allocated_bytes, summary.peak_reserved_bytes) == (90, 100)
    assert summary.peak_place == {"peak_step": None, "peak_phase": "eval", "peak_categories": None}
    summary.end(messages.Tail(device=0, peak_allocated_bytes=95, peak_reserved_bytes=100, phase="backward", step=3))
    assert summary.peak_place == {"peak_step": 3, "peak_phase": "backward", "peak_categories": None}
    assert (summary.step_peak_bytes, summary.phase_peaks_bytes) == (60, {"eval": 90, "backward": 95})


@given(st.permutations(range(1, 30)))
@settings(deadline=None)
def test_every_order_of_batches_ends_without_a_gap(order: list[int]) -> None:
    last, early = 0, []
    for count, sequence in enumerate(order):
        last, new = add_sequence(last, early, sequence)
        assert new
        assert add_sequence(last, early, sequence) == (last, False)
        assert early == sorted(early) and all(first > last + 1 for first, _ in early)
        seen = set(order[: count + 1])
        assert set(range(1, last + 1)) | {n for first, end in early for n in range(first, end + 1)} == seen
    assert (last, early) == (29, [])


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["running", "failed"], "running"),
        (["failed", "lost", "finished"], "failed"),
        (["lost", "finished"], "lost"),
        (["finished", "finished"], "finished"),
    ],
)
def test_a_runs_state_follows_from_its_ranks(states: list[str], expected: str) -> None:
    assert run_state(states) == expected  # type: ignore[arg-type]


def test_a_slow_clock_is_believed_when_batches_agree_and_a_spool_is_not() -> None:
    behind = Skew()
    for second in range(5):
        behind.see((1000 + second) * SECOND, (4600 + second) * SECOND + second * 1_000_000)
    assert behind.skew_ns == pytest.approx(-3600 * SECOND, abs=SECOND // 100)
    spool = Skew()
    for number in range(3000):  # five batches a second, written an hour ago, read out in six seconds
        spool.see(1000 * SECOND + number * SECOND // 5, 4600 * SECOND + number * SECOND // 500)
    assert spool.skew_ns is None
    ahead = Skew()
    ahead.see(5000 * SECOND, 1000 * SECOND)
    assert ahead.skew_ns == 4000 * SECOND


def test_the_peaks_composition_comes_from_the_first_equally_high_step_that_tells_it() -> None:
    """The agent splits some of the steps: the first to reach the peak stays the peak's step, a later one explains it."""
    summary = RankSummary()

    def steps(first: int, peaks: list[int], **columns: list[int]) -> None:
        rows = {"step": list(range(first, first + len(peaks))), "peak_allocated_bytes": peaks, **columns}
        rows["time_ns"] = [SECOND * 10**9 + step for step in rows["step"]]
        summary.add("steps", {name: np.array(values, np.int64) for name, values in rows.items()})

    steps(1, [5, 9, 9], peak_phase=[3, -1, 3])
    assert (summary.peak_step, summary.peak_phase, summary.peak_categories) == (2, "backward", None)
    names = [
        f"peak_{name}_bytes" for name in ("parameters", "gradients", "optimizer", "buffers", "activations", "other")
    ]
    steps(4, [9, 8], **{name: [value, 99] for value, name in enumerate(names)})
    assert summary.peak_step == 2
    assert summary.peak_categories == {
        "parameters": 0, "gradients": 1, "optimizer": 2, "buffers": 3, "activations": 4, "workspaces": None, "other": 5,
    }, "complete without workspaces, which are part of other then"  # fmt: skip
    steps(6, [9], **{name: [7] for name in ["peak_workspaces_bytes", *names]})
    assert summary.peak_categories["parameters"] == 0, "a later step does not replace it"
    steps(7, [10])
    assert (summary.peak_step, summary.peak_phase, summary.peak_categories) == (7, None, None)


def test_a_peak_that_no_step_had_is_of_its_phase_alone() -> None:
    """An evaluation between two steps, or one in which memory ran out."""
    summary = RankSummary()

    def rows(stream: str, **columns: list[int]) -> None:
        count = len(next(iter(columns.values())))
        times = [SECOND * 10**9 + at for at in range(count)]
        summary.add(stream, {name: np.array(one, np.int64) for name, one in {"time_ns": times, **columns}.items()})

    def place() -> tuple[object, ...]:
        result = aggregate([RankSummary(step_peak_bytes=30, peak_allocated_bytes=30, peak_step=7), summary])
        return tuple(result[f"peak_{name}"] for name in ("allocated_bytes", "step", "phase", "categories"))

    backward, evaluation = series.PHASES.index("backward"), series.PHASES.index("eval")
    rows("steps", step=[1, 2], peak_allocated_bytes=[40, 50], peak_phase=[backward, backward])
    assert place() == (50, 2, "backward", None)
    rows("samples", step=[2, 2, 2], allocated_bytes=[50, 90, 80], phase=[backward, evaluation, evaluation])
    assert place() == (90, None, "eval", None), "it was called step 2's, in backward"
    rows("steps", step=[3], peak_allocated_bytes=[100], peak_phase=[backward])
    assert place() == (100, 3, "backward", None), "a sample in the midst of a step is below the step's own peak"


def test_samples_alone_are_no_peak_once_a_step_has_ended() -> None:
    """Of an XPU or MPS, steps have no peaks. Before the first step, a sample is the best that is known."""

    def columns(**values: list[int]) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in values.items()}

    summary = RankSummary()
    summary.add("samples", columns(time_ns=[1, 2], step=[0, 0], allocated_bytes=[10, 30], reserved_bytes=[50, 60]))
    assert aggregate([summary])["peak_allocated_bytes"] == 30
    summary.add("steps", columns(time_ns=[3], step=[1]))
    row = aggregate([summary])
    assert (row["steps"], row["peak_allocated_bytes"], row["peak_reserved_bytes"]) == (1, None, None)
    assert (row["peak_step"], row["peak_phase"], row["peak_categories"]) == (None, None, None)
    summary.add("steps", columns(time_ns=[4], step=[2], peak_allocated_bytes=[20], peak_reserved_bytes=[40]))
    assert aggregate([summary])["peak_allocated_bytes"] == 30
