"""Snapshot files of any kind are read, or refused with a clear word; nothing that is in them is executed."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vramscope.window import ACTIONS
from vramscope_server.analysis.history import pickle_bounds
from vramscope_server.analysis.history.snapshot_reader import BadSnapshot, read
from vramscope_server.analysis.history.trace import layout_at

MIB = 1 << 20
FRAMES = [{"name": "forward", "filename": "model.py", "line": 7}, {"name": "main", "filename": "train.py", "line": 3}]


def event(action: str, addr: int = 0x7F0000000000, size: int = 1024, **more: Any) -> dict[str, Any]:
    return {
        "action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000, "frames": FRAMES,
        "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), **more,
    }  # fmt: skip


def segment(blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "device": 0, "address": 0x7F0000000000, "total_size": sum(block["size"] for block in blocks), "stream": 0,
        "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks, **more,
    }  # fmt: skip


def block(size: int, state: str = "inactive", requested: int = 0) -> dict[str, Any]:
    return {"address": 0, "size": size, "requested_size": requested, "state": state, "frames": FRAMES}


def plain() -> dict[str, Any]:
    """A snapshot of one allocation that lives, and one that does not."""
    segments = [segment([block(1024, "active_allocated", 1000), block(2 * MIB - 1024)])]
    trace = [
        event("segment_alloc", size=2 * MIB),
        event("alloc", size=1000),
        event("alloc", addr=0x7F0000000400, size=5),
        event("free_requested", addr=0x7F0000000400, size=5),
        event("free_completed", addr=0x7F0000000400, size=5),
    ]
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_round_threshold": 0}
    return {"segments": segments, "device_traces": [trace], "allocator_settings": settings, "external_annotations": []}


def read_object(told: Any, **bounds: int) -> Any:
    return read(pickle.dumps(told), **bounds)


def refusal(told: Any, **bounds: int) -> str:
    with pytest.raises(BadSnapshot) as refused:
        read(told if isinstance(told, bytes) else pickle.dumps(told), **bounds)
    return str(refused.value)


# ---- what is read ----


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [False, True])
def test_every_protocol_gives_the_same_trace(protocol: int, zipped: bool, tmp_path: Path) -> None:
    data = pickle.dumps(plain(), protocol)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(gzip.compress(data) if zipped else data)
    (trace,) = read(path).devices
    assert [ACTIONS[code] for code in trace.events.action] == [one["action"] for one in plain()["device_traces"][0]]
    assert trace.events.time_ns[0] == 1_700_000_000_000_000_000
    assert trace.stacks[trace.events.stack[1]] == [0, 1]
    assert [trace.words[at] for at in trace.frames["function"]] == ["forward", "main"]
    assert trace.end.allocated_bytes == 1024
    assert len(layout_at(trace, -1).segments) == 0
    assert list(layout_at(trace, 2).blocks.size_bytes) == [1024, 512, 2 * MIB - 1536]


def test_unknown_fields_and_actions_are_named_and_left_out() -> None:
    told = plain()
    told["colour"] = "blue"
    told["device_traces"][0].insert(1, event("teleport"))
    told["device_traces"][0][0]["mood"] = [1, 2]
    snapshot = read_object(told)
    assert len(snapshot.devices[0].events) == 5
    notes = " ".join(snapshot.notes)
    assert "the field colour of the file" in notes
    assert "the field mood of an event" in notes
    assert "the action teleport" in notes


def test_each_device_has_a_trace_of_its_own() -> None:
    told = plain()
    other = [{**one, "addr": one["addr"] + MIB} for one in told["device_traces"][0]]
    told["device_traces"] = [told["device_traces"][0], [], other]
    told["segments"].append({**told["segments"][0], "device": 2, "address": 0x7F0000000000 + MIB})
    snapshot = read_object(told)
    assert [trace.device for trace in snapshot.devices] == [0, 2]
    assert snapshot.devices[1].events.address[0] == 0x7F0000000000 + MIB


def test_a_file_without_history_says_how_to_get_one() -> None:
    (trace,) = read_object({**plain(), "device_traces": [[]]}).devices
    assert len(trace.events) == 0
    assert "_record_memory_history" in " ".join(trace.notes)
    assert trace.end.allocated_bytes == 1024


def test_the_real_allocators_own_files_are_read(recorded: dict[str, Any]) -> None:
    """Its settings, its expandable segments, its stacks; what lay there at the end is what it said itself."""
    (trace,) = read(recorded["evaluation"].path).devices
    assert trace.settings == "expandable_segments:True"
    assert trace.end.reserved_bytes == recorded["evaluation"].counted["end_reserved_bytes"]
    assert trace.end.segments.expandable.all()
    own = [trace.words[trace.frames["function"][frame]] for frame in trace.stacks[trace.events.stack[-3]]]
    assert "train_evaluation" in " ".join(trace.words)
    assert own


# ---- what is refused ----


class Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", [2, 4])
def test_globals_are_named_and_nothing_is_executed(protocol: int, tmp_path: Path) -> None:
    bad = tmp_path / "executed"
    said = refusal(pickle.dumps({**plain(), "extra": Harmful(bad)}, protocol))
    assert "the global posix.mkdir" in said
    assert "Nothing was executed" in said
    assert not bad.exists()


def test_objects_of_elsewhere_are_refused() -> None:
    assert "object outside of it" in refusal(b"\x80\x04\x8c\x03abcQ.")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 a zip file", "no pickle of protocol 2 to 5"),
        (b"(dp0\n.", "no pickle of protocol 2 to 5"),
        (b"\x80\x04]" + b"r" + struct.pack("<I", 0x7FFFFFFF) + b".", "LONG_BINPUT"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", "cut off"),
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.", "BYTEARRAY8"),
        (b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", "nests"),
        (b"\x80\x04)" + b"\x85" * 100_000 + b"}\x940h\x00N" + b"s.", "nests"),
        (b"\x80\x04(" + b"(" * 2_000_000, "nests"),
        (b"\x80\x04a.", "damaged"),
        (b"\x80\x04h\x05.", "damaged"),
        (b"\x80\x04N", "cut off"),
        (b"\x80\x04NR.", "REDUCE"),
        (b"\x1f\x8b\x08\x00 no gzip at all", "damaged"),
        (gzip.compress(pickle.dumps(list(range(1000))))[:-20], "cut off"),
    ],
)
def test_bytes_that_are_no_snapshot_say_why(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_sizes_are_bounded() -> None:
    assert "up to 1,000 can be read" in refusal(gzip.compress(b"\x80\x04(" + b"N" * 10_000_000), max_bytes=1000)
    with pytest.raises(pickle_bounds.Refused, match="more than 1,000 objects"):
        pickle_bounds.check(b"\x80\x04](" + b"N" * 10_000 + b"e.", max_objects=1000)
    trace = plain()["device_traces"][0]
    assert "more than 100,000 events" in refusal(
        {**plain(), "device_traces": [trace * 10_000] * 100}, max_events=100_000
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: [1, 2], "no dict"),
        (lambda told: {"a": 1}, "no dict with a key 'segments'"),
        (lambda told: told | {"segments": 7}, "segments: no list"),
        (lambda told: told | {"device_traces": [[7]]}, "an event: no dict"),
        (lambda told: told | {"device_traces": [[event("alloc", size=1.5)]]}, "size of an event: 1.5"),
        (lambda told: told | {"device_traces": [[event("alloc", size=-5)]]}, "below 0"),
        (lambda told: told | {"device_traces": [[event("alloc", addr=1 << 70)]]}, "addr of an event"),
        (lambda told: told | {"device_traces": [[{"action": "alloc"}]]}, "missing, where a whole number can be"),
        (lambda told: told | {"device_traces": [[event("alloc", pool_id="x")]]}, "the id of a pool"),
        (lambda told: told | {"segments": [segment([block(1024, "melted")])]}, "state of a block: 'melted'"),
        (lambda told: told | {"segments": [segment([block(1024)], total_size=2048)]}, "do not fill"),
        (lambda told: told | {"segments": [segment([block(1024)], segment_type="huge")]}, "segment_type of a segment"),
        (lambda told: told | {"segments": [segment([block(1024)], device="cuda")]}, "device"),
        (lambda told: told | {"segments": [], "device_traces": []}, "empty"),
        (lambda told: told | {"allocator_settings": 5}, "allocator_settings"),
    ],
)
def test_what_cannot_be_names_its_field(change: Any, words: str) -> None:
    assert words in refusal(change(plain()))


def test_damaged_files_give_a_word_or_a_snapshot_and_never_another_error() -> None:
    """Cut anywhere; and a byte changed anywhere, 3,000 times from one seed."""
    data = pickle.dumps(plain())
    for end in range(len(data)):
        refusal(data[:end])
    draw = random.Random(5)
    read_all = 0
    for _ in range(3000):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] = draw.randrange(256)
        try:
            snapshot = read(bytes(damaged))
        except BadSnapshot:
            continue
        read_all += 1
        for trace in snapshot.devices:
            for at in range(-1, len(trace.events)):
                assert np.all(layout_at(trace, at).blocks.size_bytes > 0)
    assert read_all > 100  # a changed digit of a time is no damage that could be seen
