"""A window that begins with a model on the card, and nothing let go before: what it would have come to is known, not guessed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from measured import measure_all

from vramscope.protocol.window import Window, unpack
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif import window_start
from vramscope_server.analysis.whatif.sweep import predict, smallest_device, sweep
from vramscope_server.analysis.whatif.variants import IN_SOME_ORDER
from vramscope_server.analysis.whatif.window_start import beginning_of
from vramscope_server.cli.whatif import _may_be

MIB = 1 << 20
CONFS = ("expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:8")
NAMES = ("lengths", "cnn")
STEPS = 3
"""Number of steps of the agent's first window."""


@pytest.fixture(scope="module")
def windows(emulated_gpu: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Window]:
    """As the agent records them that is attached when the model is there."""
    folder = tmp_path_factory.mktemp("windows")
    measure_all([(name, "", {"steps": STEPS, "window": str(folder / name)}) for name in NAMES])
    return {name: unpack((folder / name).read_bytes()) for name in NAMES}


def counted(window: Window, **counters: int) -> Trace:
    """The same window, whose allocator had counted otherwise when it began."""
    assert window.start is not None
    named = {name.replace("_all_", ".all."): count for name, count in counters.items()}
    start = msgspec.structs.replace(window.start, counters=window.start.counters | named)
    return from_window(msgspec.structs.replace(window, start=start))


def test_what_other_settings_give_is_what_the_allocator_then_does(windows: dict[str, Window]) -> None:
    """Within a segment of each pool, with max_split_size_mb too, and here to the byte."""
    lengths = from_window(windows["lengths"])
    card = smallest_device(lengths, CONFS[1]) or 0
    asked: list[Any] = [(name, conf, {"steps": STEPS}) for name in NAMES for conf in CONFS]
    answers = measure_all(
        [*asked, *(("lengths", CONFS[1], {"steps": STEPS, "total": total}) for total in (card, card - card // 50))]
    )
    assert [answer["out_of_memory"] for answer in answers[-2:]] == [False, True], "the smallest card, and a smaller one"
    for (name, conf, _), came in zip(asked, answers[:-2], strict=True):
        prediction = predict(from_window(windows[name]), conf)
        assert prediction.certainty == "band", prediction.reasons
        assert "almost nothing was freed before" in " ".join(prediction.reasons)
        assert prediction.peak_reserved_bytes == came["peak_reserved_bytes"]
        assert prediction.band is not None and prediction.band[0] < came["peak_reserved_bytes"] < prediction.band[1]
        assert prediction.band[1] - prediction.band[0] < 0.03 * came["peak_reserved_bytes"]


def test_both_ends_of_a_narrow_band_are_told_by_what_it_may_be_off(windows: dict[str, Window]) -> None:
    prediction = predict(from_window(windows["lengths"]), CONFS[1])
    low, peak = (prediction.band or (0, 0))[0], prediction.uncapped_peak_reserved_bytes
    assert _may_be(replace(prediction, band=(peak - 1024, peak + 1))) == "± 1.00 KiB"
    assert _may_be(replace(prediction, band=(low // 2, peak))).endswith(f" GiB to {amount(peak)}")
    limited = replace(prediction, band=(low // 2, peak), peak_reserved_bytes=low // 4)
    assert _may_be(limited).endswith(f" GiB to {amount(peak)} if never full"), (
        "the band is not of what a limit left of the peak"
    )
    assert _may_be(replace(prediction, band=None)) == _may_be(replace(prediction, band=(peak, peak))) == ""
    notes = sweep(from_window(windows["lengths"]), []).notes
    assert "The peaks cover the run from its beginning to the end of the recording." in notes


def test_the_recorded_settings_on_another_card_begin_there_too(windows: dict[str, Window]) -> None:
    trace = from_window(windows["lengths"])
    prediction = predict(trace, "", device_bytes=smallest_device(trace, ""))
    assert IN_SOME_ORDER in prediction.reasons
    assert "not in the history" not in " ".join(prediction.reasons)


def test_where_the_order_cannot_have_been_another_it_is_exact(emulated_gpu: None, tmp_path: Any) -> None:
    """In expandable segments blocks lie as they came."""
    path = tmp_path / "window"
    grown, came = measure_all(
        [("accumulation", "expandable_segments:True", {"steps": STEPS, "window": str(path)}),
         ("accumulation", "max_split_size_mb:64", {"steps": STEPS})]
    )  # fmt: skip
    prediction = predict(from_window(unpack(path.read_bytes())), "max_split_size_mb:64")
    assert (prediction.certainty, prediction.band) == ("exact", None), prediction.reasons
    assert prediction.peak_reserved_bytes == came["peak_reserved_bytes"] != grown["peak_reserved_bytes"]


def test_a_little_that_was_let_go_leaves_the_small_pool_open(windows: dict[str, Window]) -> None:
    window = windows["lengths"]
    known = beginning_of(from_window(window))
    assert known is not None and known.is_open
    here = window.start.counters["allocation.all.allocated"] if window.start else 0
    few = counted(window, allocation_all_allocated=here + 6, allocation_all_freed=6, allocated_bytes_all_freed=3072)
    assert beginning_of(few) is not None
    assert predict(few, CONFS[1]).certainty == "band"
    many = counted(
        window, allocation_all_allocated=here + 1, allocation_all_freed=1, allocated_bytes_all_freed=20 * MIB
    )
    assert beginning_of(many) is None
    prediction = predict(many, CONFS[1])
    assert prediction.certainty == "estimate"
    assert "starts mid-run" in " ".join(prediction.reasons)


@pytest.mark.parametrize(
    "counters",
    [
        {"segment_all_freed": 1},
        {"num_alloc_retries": 1},
        {"num_ooms": 1},
        {"allocation_all_allocated": 3},  # set back by the program
        {"reserved_bytes_all_allocated": 0},  # set back when nothing was alive, and something cached
    ],
)
def test_what_the_counters_do_not_vouch_for_is_not_known(windows: dict[str, Window], counters: dict[str, int]) -> None:
    assert beginning_of(counted(windows["lengths"], **counters)) is None


# ---- orders by best fit ----

ROOM = 2 * MIB


def laid(sizes: list[int]) -> list[list[int]]:
    """Blocks by segment, as best fit lays them: the nearest rest, of two that are alike that of the older segment."""
    segments: list[list[int]] = []
    for size in sizes:
        rest = [(ROOM - sum(segment), at) for at, segment in enumerate(segments) if ROOM - sum(segment) >= size]
        if rest:
            segments[min(rest)[1]].append(size)
        else:
            segments.append([size])
    return segments


def order_of(segments: list[list[int]], made: list[int], first: int = 0) -> list[int]:
    sizes = np.array([size for segment in segments for size in segment], np.int64)
    begins = np.cumsum([0, *map(len, segments)])
    ranked, room = np.array(made, np.int64), np.full(len(segments), ROOM, np.int64)
    return list(
        window_start.by_best_fit(begins, sizes, sizes, room, ranked, ranked, np.full(len(sizes), first, np.int64))
    )


def test_orders_are_found_in_which_blocks_come_to_lie_as_they_do() -> None:
    draw, found = random.Random(5), 0
    kinds = [512, 1024, 4096, 98304, 262144, 393216, 512000, 786432, 1048576]
    for _ in range(200):
        layer = draw.choices(kinds, k=draw.randrange(2, 9))
        segments = laid([size for _ in range(draw.randrange(1, 9)) for size in [*layer, draw.choice(kinds)]])
        flat = [size for segment in segments for size in segment]
        order = order_of(segments, list(range(len(segments))))
        if order:
            found += 1
            assert sorted(order) == list(range(len(flat)))
            assert sorted(laid([flat[at] for at in order])) == sorted(segments)
    assert found >= 190


def test_an_order_is_found_where_the_first_choice_gets_stuck() -> None:
    """The last block of the first segment came when the second one had less left than it needs."""
    segments = [[700_416, 700_416, 200_704], [786_432, 786_432, 400_384]]
    flat = [size for segment in segments for size in segment]
    order = order_of(segments, [0, 1])
    assert order.index(5) < order.index(2)
    assert laid([flat[at] for at in order]) == segments


def test_what_no_order_can_have_laid_is_not_found() -> None:
    """The second segment's block had fitted into the first."""
    assert order_of([[1024], [1024]], [0, 1]) == []
