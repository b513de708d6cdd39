"""How sure a prediction says that it is: what a history does not tell makes a band or an estimate of it, with the reason."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from history_windows import window_of
from small_snapshot import event, plain, read_object

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.simulator.program import ALLOC, FREE, FREE_COMPLETED, FREE_REQUESTED, Program
from vramscope_server.analysis.simulator.replay import UNLIMITED, replay
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.simulator.versions import NEWEST, PROFILES, profile_of
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import Events
from vramscope_server.analysis.whatif.sweep import check, predict, sweep
from vramscope_server.analysis.whatif.variants import waiting

GIB, MIB = 1 << 30, 1 << 20
CONF = "max_split_size_mb:64"


@pytest.fixture(scope="module")
def traces(recorded: dict[str, Any]) -> dict[str, Trace]:
    return {kind: read(recorded[kind].path).devices[0] for kind in ("lengths", "late", "waits", "died")}


def window(trace: Trace, **fields: Any) -> Trace:
    return from_window(window_of(trace, **fields))


def test_what_is_told_in_full_is_exact(traces: dict[str, Trace]) -> None:
    """Also where a limit that PyTorch keeps to by itself is met before the card is."""
    for conf in ("", CONF, "expandable_segments:True"):
        prediction = predict(traces["lengths"], conf)
        assert (prediction.certainty, prediction.reasons, prediction.band) == ("exact", [], None)
    limited = predict(traces["lengths"], "per_process_memory_fraction:0.06", device_bytes=80 * GIB)
    assert limited.retries > 0
    assert limited.certainty == "exact"


def test_a_limit_is_a_part_of_the_card_that_is_asked_for_and_of_no_other(traces: dict[str, Trace]) -> None:
    conf = "per_process_memory_fraction:0.3"
    assert predict(traces["lengths"], conf, device_bytes=8 * GIB).out_of_memory, "2.4 GiB"
    assert not predict(traces["lengths"], conf, device_bytes=20 * GIB).retries, "6 GiB"
    of_a_file = predict(traces["lengths"], "per_process_memory_fraction:0.01")
    assert not of_a_file.out_of_memory
    assert "no limit is assumed" in " ".join(of_a_file.notes)


def test_where_pytorch_itself_would_stop_no_figure_is_called_exact(traces: dict[str, Trace]) -> None:
    prediction = predict(traces["lengths"], "large_segment_size_mb:21,expandable_segments:True")
    assert prediction.certainty == "estimate"
    assert "the driver refuses expandable segments with such pages" in " ".join(prediction.reasons)
    assert predict(traces["late"], "large_segment_size_mb:21,expandable_segments:True").band is None


def test_a_history_in_which_nothing_happened_is_not_called_identical() -> None:
    snapshot = {**plain(), "device_traces": [[event("snapshot", addr=0)]]}
    assert "there is nothing to compare" in check(read_object(snapshot).devices[0]).words


def test_an_allocator_that_is_not_replayed_is_named(traces: dict[str, Trace]) -> None:
    other = replace(traces["lengths"], settings="backend:cudaMallocAsync", settings_in_force={})
    with pytest.raises(ValueError, match="backend cudaMallocAsync"):
        predict(other, "")


def test_a_beginning_that_is_not_known_makes_a_band_but_for_the_recorded_settings(traces: dict[str, Trace]) -> None:
    assert predict(traces["late"], "").certainty == "exact"
    prediction = predict(traces["late"], "expandable_segments:True")
    assert prediction.certainty == "band"
    assert "starts mid-run" in " ".join(prediction.reasons)
    assert set(prediction.reasons) <= set(prediction.notes)


def test_a_ring_that_forgot_the_request_of_a_free_makes_no_wait_of_it(traces: dict[str, Trace]) -> None:
    """A block that no other stream used is let go by two events; of 3 histories that a ring cut off, 1 begins with the second."""
    whole = traces["lengths"]
    first = int(np.flatnonzero(whole.events.action == ACTIONS.index("free_completed"))[200])
    cut = replace(whole, events=Events(**{one.name: getattr(whole.events, one.name)[first:] for one in fields(Events)}))
    reasons = " ".join(predict(cut, CONF).reasons)
    assert "starts mid-run" in reasons
    assert "waited for another stream" not in reasons


def test_how_much_was_left_behind_uncut_before_a_late_window_has_no_bounds(traces: dict[str, Trace]) -> None:
    for conf in (CONF, f"{CONF},expandable_segments:True"):
        prediction = predict(traces["late"], conf)
        assert prediction.certainty == "estimate"
        assert "before the recording cannot be bounded" in " ".join(prediction.reasons)
        assert prediction.band is not None, "other replays of the window"
    assert [row.is_bounded for row in sweep(traces["late"], [CONF, "roundup_power2_divisions:8"]).rows] == [
        True,
        False,
        True,
    ]


def test_the_smallest_card_of_a_late_window_tells_what_other_layouts_make_of_it(traces: dict[str, Trace]) -> None:
    whole, late = (sweep(traces[kind], [CONF]).rows[1] for kind in ("lengths", "late"))
    width = max(2 * MIB, (whole.smallest_device_bytes or 0) // 256)
    assert whole.uncertainty_bytes <= width
    assert late.uncertainty_bytes > 0
    assert late.smallest_device_bytes is not None
    assert late.uncertainty_bytes < late.smallest_device_bytes


def test_what_other_streams_used_makes_a_band_around_what_comes_where_they_are_done_earlier(
    traces: dict[str, Trace], recorded: dict[str, Any]
) -> None:
    prediction = predict(traces["waits"], CONF)
    assert prediction.certainty == "band"
    assert "waited for another stream" in " ".join(prediction.reasons)
    assert (
        prediction.band is not None
        and prediction.band[0] <= prediction.uncapped_peak_reserved_bytes <= prediction.band[1]
    )
    assert prediction.band[0] <= recorded["at once"].counted["peak_reserved_bytes"] <= prediction.band[1]
    assert prediction.band[0] < prediction.band[1]
    assert predict(traces["waits"], "").certainty == "exact", (
        "under the recorded settings it is known when they were done"
    )


def columns(*rows: tuple[int, int, int]) -> Program:
    op, item, mib = (np.array(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(len(rows), np.int32)
    return Program(op.astype(np.uint8), item.astype(np.int32), mib * MIB, zeros, zeros, np.arange(len(rows)))


def test_what_waits_is_done_at_the_request_or_after_twice_the_time() -> None:
    """30 MiB wait while as much is asked for: their segment serves it, or not."""
    program = columns(
        (ALLOC, 0, 30), (FREE_REQUESTED, 0, 0), (ALLOC, 1, 30), (FREE_COMPLETED, 0, 0), (ALLOC, 2, 30), (ALLOC, 3, 30)
    )  # fmt: skip
    peaks = [
        replay(one, AllocatorSettings(), profile=NEWEST, device_bytes=UNLIMITED).peak_reserved_bytes
        for one in (program, *waiting(program))
    ]
    assert peaks == [90 * MIB, 90 * MIB, 120 * MIB]
    at_once, twice = waiting(program)
    assert at_once.op.tolist() == [ALLOC, FREE, ALLOC, FREE_COMPLETED, ALLOC, ALLOC]
    assert twice.op.tolist() == [ALLOC, FREE_REQUESTED, ALLOC, ALLOC, ALLOC, FREE_COMPLETED]
    assert waiting(columns((ALLOC, 0, 30), (ALLOC, 1, 30))) == []
    to_the_end = columns((ALLOC, 0, 30), (FREE_REQUESTED, 0, 0), (ALLOC, 1, 30))
    peaks = [
        replay(one, AllocatorSettings(), profile=NEWEST, device_bytes=UNLIMITED).peak_reserved_bytes
        for one in waiting(to_the_end)
    ]
    assert peaks == [30 * MIB, 60 * MIB]


def test_events_that_are_missing_make_an_estimate_of_every_row(traces: dict[str, Trace]) -> None:
    rows = sweep(replace(traces["lengths"], lost_events=5), [CONF]).rows
    assert [row.prediction.certainty for row in rows] == ["estimate", "estimate"]
    assert "5 events are missing" in " ".join(rows[1].prediction.reasons)


def test_a_replay_that_does_not_give_what_was_recorded_makes_estimates(traces: dict[str, Trace]) -> None:
    other = replace(traces["lengths"], settings="max_split_size_mb:32", settings_in_force={})
    for conf in ("", CONF, "max_split_size_mb:32"):
        prediction = predict(other, conf)
        assert prediction.certainty == "estimate"
        assert "does not reproduce the recorded peak" in " ".join(prediction.reasons)


def test_calls_of_empty_cache_without_an_effect_make_estimates_of_other_settings(traces: dict[str, Trace]) -> None:
    counted = window_of(traces["lengths"])
    assert counted.start is not None
    for layout, syncs in ((counted.start, 1), (counted.end, 4)):
        layout.counters.update(num_sync_all_streams=syncs, num_alloc_retries=0)
    trace = from_window(counted)
    prediction = predict(trace, CONF)
    assert prediction.certainty == "estimate"
    assert "empty_cache() was called 3 times without an effect" in " ".join(prediction.reasons)
    assert predict(trace, "").certainty == "exact"
    assert "It is unknown whether empty_cache()" in " ".join(sweep(traces["lengths"], []).notes), (
        "a file does not count them"
    )
    counted.end.counters.update(num_sync_all_streams=1)
    assert predict(from_window(counted), CONF).certainty == "exact"


def test_a_card_that_is_full_makes_an_estimate(traces: dict[str, Trace]) -> None:
    """When cudaMalloc fails is decided by what else there is on the card."""
    unknown = predict(traces["lengths"], CONF, device_bytes=5 * GIB)
    assert unknown.certainty == "estimate"
    assert "unknown and taken as 0" in " ".join(unknown.reasons)
    trace = window(traces["lengths"])
    known = predict(trace, CONF, device_bytes=14 * GIB)
    assert known.retries > 0
    assert known.certainty == "estimate"
    assert "taken as 10.0 GiB throughout" in " ".join(known.reasons)
    # Large cached segments were returned to the device, which counts as no retry.
    known = predict(trace, CONF, device_bytes=16 * GIB)
    assert known.retries == 0 and known.peak_reserved_bytes < known.uncapped_peak_reserved_bytes
    assert known.certainty == "estimate"
    assert "taken as 10.0 GiB throughout" in " ".join(known.reasons)
    assert predict(trace, CONF).certainty == "exact", "its own card has room"
    died = traces["died"]
    assert predict(died, "").certainty == "exact", "that is what happened"
    assert predict(died, CONF).certainty == "estimate"


def test_the_rules_of_another_version_make_an_estimate_and_are_named(traces: dict[str, Trace]) -> None:
    older = replace(traces["lengths"], torch="2.6.0+cu124")
    prediction = predict(older, CONF)
    assert prediction.certainty == "estimate"
    assert "PyTorch 2.6 was not checked: replayed with the rules of 2.11" in " ".join(prediction.reasons)
    assert prediction.band is not None, "three orders of addresses"


def test_a_file_that_does_not_tell_its_version_is_said_to_be_replayed_by_some_rules(traces: dict[str, Trace]) -> None:
    assert traces["lengths"].torch == "2.13 or newer"
    prediction = predict(traces["lengths"], CONF)
    assert "The file is of PyTorch 2.13 or newer: replayed with the rules of 2.15" in " ".join(prediction.notes)
    profile, note = profile_of("2.12 or older")
    assert profile is PROFILES[0]
    assert "replayed with the rules of 2.11" in note
    older = predict(replace(traces["lengths"], torch="2.12 or older"), CONF)
    assert older.certainty == "estimate"
    assert "replayed with the rules of 2.11" in " ".join(older.reasons)
    assert msgspec.json.encode(older), "as plain as an answer must be"
