"""Events that are in a file twice count once where that is sure, and are reported where it is not."""

from __future__ import annotations

import gzip
import pickle
import random
from typing import Any

import pytest
from small_snapshot import MIB, event, plain, read_object
from test_snapshot_protocols import told_by

from vramscope_server.analysis import number_format
from vramscope_server.analysis.trace.missing_events import missing_event_notes
from vramscope_server.analysis.trace.trace import reserved_after


@pytest.mark.parametrize("kind", ["lengths", "evaluation", "ring", "died", "at once"])
def test_a_history_with_events_told_again_is_that_without_them(recorded: dict[str, Any], kind: str) -> None:
    """One event of each sort put somewhere behind itself; and two pieces of a history that overlap, put together."""
    with gzip.open(recorded[kind].path) as file:
        contents = pickle.load(file)
    (trace,) = contents["device_traces"]
    expected = told_by(read_object(contents).devices[0])
    gaps = list(missing_event_notes(read_object(contents).devices[0]))
    draw = random.Random(3)
    third = len(trace) // 3
    ways = {"overlap": (trace[: 2 * third] + trace[third:], third)}
    for action in sorted({one["action"] for one in trace} - {"oom", "snapshot"}):  # nothing is taken by these
        at = draw.choice([at for at, one in enumerate(trace) if one["action"] == action])
        for place in (at + 1, draw.randrange(at + 1, len(trace) + 1)):
            ways[f"{action} at {at} put at {place}"] = ([*trace[:place], trace[at], *trace[place:]], 1)
    for way, (events, times) in ways.items():
        snapshot = read_object({**contents, "device_traces": [events]})
        assert snapshot.notes == [f"a duplicate event: left out ({number_format.times(times)})"], way
        assert told_by(snapshot.devices[0]) == expected, way
        assert list(missing_event_notes(snapshot.devices[0])) == gaps


@pytest.mark.parametrize(
    "skipped", [(), ("free_requested",), ("free_completed",), ("free_requested", "free_completed")]
)
def test_equal_allocations_of_one_microsecond_are_several(skipped: tuple[str, ...]) -> None:
    """Taken, freed and taken again: nothing is repeated, whatever is recorded of the frees."""
    contents = plain()
    again = [event(action, size=1000) for action in ("free_requested", "free_completed", "alloc")]
    contents["device_traces"][0][2:2] = again * 3
    contents["device_traces"] = [[one for one in contents["device_traces"][0] if one["action"] not in skipped]]
    snapshot = read_object(contents)
    assert snapshot.notes == []
    assert int((snapshot.devices[0].events.action == 0).sum()) == 5


def test_what_is_taken_or_made_twice_without_being_surely_told_again_is_said() -> None:
    """Events as torch 1.13 to 2.0 wrote them, without a time; and an allocation over another one."""
    snapshot = plain()
    trace = snapshot["device_traces"][0]
    clean = [{key: value for key, value in one.items() if key != "time_us"} for one in trace]
    for events, words in (
        (clean, None),
        ([*clean[:3], clean[2], *clean[3:]], "1 allocations were made at the address of another"),
        ([*clean[:4], clean[2], *clean[4:]], "1 allocations were made at the address of another"),
        ([*trace[:3], {**trace[2], "size": 7}, *trace[3:]], "1 allocations were made at the address of another"),
        ([clean[0], *clean], "1 segments were made at the address of another"),
    ):
        (read,) = read_object({**snapshot, "device_traces": [events]}).devices
        values = list(missing_event_notes(read))
        assert values == [] if words is None else len(values) == 1 and words in values[0], (words, values)
    assert int(reserved_after(read)[0]) == -2 * MIB, "wrong by as much as the words say"


def test_an_overlap_that_ends_inside_one_microsecond_is_left_out_whole() -> None:
    """Its last events have the time of the newest one: they are repeats because those before them are."""
    snapshot = plain()
    (trace,) = snapshot["device_traces"]
    life = [event(action, size=1000) for action in ("alloc", "free_requested", "free_completed")]
    for one in life:
        one.update(addr=trace[1]["addr"] + MIB, time_us=trace[-1]["time_us"] + 5)
    trace += life
    overlap = {**snapshot, "device_traces": [trace + trace[3:]]}
    assert read_object(overlap).notes == [f"a duplicate event: left out ({number_format.times(len(trace) - 3)})"]
    again = {**snapshot, "device_traces": [trace + life]}
    assert read_object(again).notes == [], "alone, they are a second allocation"
