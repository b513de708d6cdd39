"""Numbers of more than 63 bits in snapshot files, and unknown words: they are read, or treated as unknown and noted."""

from __future__ import annotations

import gzip
import pickle
from typing import Any

import numpy as np
import pytest
from small_snapshot import MIB, block, event, plain, read_object, segment

from vramscope.protocol.window import STATES
from vramscope_server.analysis.trace.trace import address_as_json, layout_at
from vramscope_server.analysis.whatif.baseline_replay import check


def moved(snapshot: dict[str, Any], by: int) -> dict[str, Any]:
    """The same snapshot at other addresses and in another stream."""
    snapshot = pickle.loads(pickle.dumps(snapshot))
    for part in snapshot["segments"]:
        part["address"] += by
        part["stream"] += by
        for one in part["blocks"]:
            one["address"] = one.get("address", 0) + by
    for one in (one for trace in snapshot["device_traces"] for one in trace):
        one["stream"] += by
        if one["action"] != "oom":
            one["addr"] += by
    return snapshot


def signed(value: Any) -> Any:
    """The same with numbers from 2**63 on as C++ tells them that has their bits for a number with a sign."""
    if isinstance(value, dict):
        return {key: signed(one) for key, one in value.items()}
    if isinstance(value, list):
        return [signed(one) for one in value]
    return value - (1 << 64) if type(value) is int and value >= 1 << 63 else value


def columns(trace: Any) -> dict[str, Any]:
    """All that is worked out of a trace, addresses and streams counted from where they begin."""
    parts = {
        "events": trace.events, "lives": trace.lives, "segments": trace.segment_lives, "end": trace.end.blocks,
        "beginning": trace.beginning.blocks, "middle": layout_at(trace, len(trace.events) // 2).blocks,
    }  # fmt: skip
    found = {}
    for part, rows in parts.items():
        for name in (name for name in rows.__slots__ if name != "unended"):
            column = np.array(getattr(rows, name))
            found[f"{part}.{name}"] = column - column.min(initial=0) if name in ("address", "stream") else column
    return found


@pytest.mark.parametrize("by", [1 << 63, (1 << 64) - (1 << 48)])
def test_addresses_and_streams_from_2_to_63_on_are_read_by_their_bits(recorded: dict[str, Any], by: int) -> None:
    """A real history, moved there: with and without a sign it is the same as where it came from."""
    with gzip.open(recorded["lengths"].path) as file:
        contents = pickle.load(file)
    (here,) = read_object(contents).devices
    there = moved(contents, by)
    unsigned, below = read_object(there), read_object(signed(there))
    assert unsigned.notes == below.notes == []
    expected = columns(here)
    for snapshot in (unsigned, below):
        found = columns(snapshot.devices[0])
        low = int(here.events.address.min()), int(snapshot.devices[0].events.address.min())
        assert address_as_json(low[1]) == hex(low[0] + by)
        for name in expected:
            if name.endswith("address"):
                assert np.array_equal(np.diff(found[name]), np.diff(expected[name])), name
            else:
                assert np.array_equal(found[name], expected[name]), name
        assert check(snapshot.devices[0]) == check(here)
        assert check(here).exact


def noted(change: Any) -> tuple[Any, str]:
    """The trace of a changed snapshot, and what is noted of it."""
    contents = plain()
    change(contents)
    snapshot = read_object(contents)
    return snapshot.devices[0], " ".join(snapshot.notes)


def test_values_out_of_range_are_unknown_and_noted() -> None:
    def set_event(at: int, **fields: Any) -> Any:
        return lambda snapshot: snapshot["device_traces"][0][at].update(fields)

    for field, value in (
        ("addr", 1 << 70),
        ("addr", (1 << 63) - 1),
        ("size", 1 << 70),
        ("size", 1 << 63),
        ("size", 1 << 61),
    ):
        trace, note = noted(set_event(4, **{field: value}))
        assert len(trace.events) == 4, (field, value)
        assert "addr or size of an event: out of range; these events are left out (once)" in note
    trace, note = noted(set_event(1, addr=1 << 70, user_metadata="gone"))
    assert trace.labels == {}, "labels go with their events"
    trace, note = noted(set_event(1, time_us=1 << 70))
    assert trace.events.time_ns[1] == -1 < trace.events.time_ns[0]
    assert "time_us of an event: out of range; treated as unknown (once)" in note
    trace, note = noted(set_event(1, stream=(1 << 70) + 5))
    assert trace.events.stream.tolist() == [0, 5, 0, 0, 0]
    assert "stream of an event: more than 64 bits; only the lowest 64 are used (once)" in note
    trace, note = noted(set_event(1, pool_id=(1 << 70, 1)))
    assert trace.events.pool.tolist() == [0, -1, 0, 0, 0]
    assert "pool_id of an event: not a pair of 64-bit numbers; treated as unknown (once)" in note
    trace, note = noted(set_event(1, pool_id=((1 << 63) + 7, 1)))
    assert trace.pools[trace.events.pool[1]] == ((1 << 63) + 7 - (1 << 64), 1) and note == ""
    trace, note = noted(set_event(1, frames=[{"name": "f", "filename": "a.py", "line": (1 << 64) - 1}]))
    assert trace.frames["line"].tolist() == [7, 3, 0] and note == "", "a line of -1, as PyTorch 2.1 wrote it"

    def oom(snapshot: dict[str, Any]) -> None:
        snapshot["device_traces"][0].append({**event("oom", size=7), "device_free": (1 << 64) - 1})
        del snapshot["device_traces"][0][-1]["addr"]

    trace, note = noted(oom)
    assert (len(trace.events), int(trace.events.address[-1])) == (6, -1)
    assert "device_free of an event: out of range; treated as unknown (once)" in note


def test_segments_and_blocks_out_of_range_are_left_out_and_noted() -> None:
    def with_another(**fields: Any) -> Any:
        other = segment([block(2 * MIB)], address=0x7F1000000000)
        return lambda snapshot: snapshot["segments"].append({**other, **fields})

    for fields in ({"address": 1 << 70}, {"total_size": 1 << 63}, {"blocks": [block(1 << 64)], "total_size": 2 * MIB},
                   {"blocks": [block(1 << 62)], "total_size": 1 << 62}):  # fmt: skip
        trace, note = noted(with_another(**fields))
        assert (len(trace.end.segments), trace.end.allocated_bytes) == (1, 1024), fields
        assert "address or size of a segment: out of range; these segments and their blocks are left out (once)" in note
    trace, note = noted(with_another(stream=1 << 63, segment_pool_id=(1 << 70, 0)))
    assert trace.end.segments.stream.tolist() == [0, -(1 << 63)]
    assert trace.end.segments.pool.tolist() == [0, 0]
    assert "segment_pool_id of a segment: not a pair of 64-bit numbers; treated as the default pool (once)" in note
    trace, note = noted(with_another(blocks=[block(2 * MIB, "active_allocated", 1 << 64)]))
    assert trace.end.blocks.requested_bytes.tolist()[-1] == 2 * MIB
    assert "requested_size of a block: out of range; the size of the block is used instead (once)" in note


def test_unknown_states_and_types_are_treated_as_in_pytorchs_viewer() -> None:
    """It counts what is not active_allocated as free, and needs no type of a segment."""
    viz = pytest.importorskip("torch.cuda._memory_viz")

    def change(snapshot: dict[str, Any]) -> None:
        snapshot["segments"][0]["blocks"][1]["state"] = "melted"
        snapshot["segments"][0]["segment_type"] = "huge"
        large = segment([block(20 * MIB, "active_allocated", 20 * MIB)], address=0x7F1000000000)
        del large["segment_type"]
        snapshot["segments"].append(large)

    trace, note = noted(change)
    assert [STATES[state] for state in trace.end.blocks.state] == ["active_allocated", "inactive", "active_allocated"]
    assert trace.end.segments.large.tolist() == [0, 1]
    assert "the state melted of a block: unknown to this version, treated as free (once)" in note
    assert "segment_type of a segment: huge, unknown to this version; derived from its size (once)" in note
    assert "segment_type of a segment: missing; derived from its size (once)" in note
    snapshot = plain()
    change(snapshot)
    assert "total_allocated: 20.0MiB" in viz.segsum(snapshot)
    assert trace.end.allocated_bytes == 20 * MIB + 1024
