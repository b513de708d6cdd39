"""Snapshot files of any kind are read, or refused with a clear word; nothing that is in them is executed."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_snapshot import FRAMES, MIB, block, event, plain, read_object, segment

from vramscope.protocol.window import ACTIONS, BadWindow
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.ownership.summary import summary
from vramscope_server.analysis.snapshot_format import stream
from vramscope_server.analysis.snapshot_format.reader import BadSnapshot, read
from vramscope_server.analysis.techniques.predict import predict
from vramscope_server.analysis.timeline.axis_spans import ruler
from vramscope_server.analysis.timeline.flamegraph import flame
from vramscope_server.analysis.timeline.source_lines import frame_of, sites_of
from vramscope_server.analysis.trace.frames import brief
from vramscope_server.analysis.trace.missing_events import missing_event_notes
from vramscope_server.analysis.trace.trace import layout_at


def refusal(snapshot: Any, **bounds: int) -> str:
    with pytest.raises(BadSnapshot) as refused:
        read(snapshot if isinstance(snapshot, bytes) else pickle.dumps(snapshot), **bounds)
    return str(refused.value)


# ---- what is read ----


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("zipped", [False, True])
def test_every_protocol_gives_the_same_trace(protocol: int, zipped: bool, tmp_path: Path) -> None:
    data = pickle.dumps(plain(), protocol)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(gzip.compress(data) if zipped else data)
    (trace,) = read(path).devices
    assert [ACTIONS[code] for code in trace.events.action] == [one["action"] for one in plain()["device_traces"][0]]
    assert trace.events.time_ns[0] == 1_700_000_000_000_000_000
    assert [trace.words[trace.frames["function"][at]] for at in trace.stacks[trace.events.stack[1]]] == [
        "forward",
        "main",
    ]
    assert trace.end.allocated_bytes == 1024
    assert len(layout_at(trace, -1).segments) == 0
    assert list(layout_at(trace, 2).blocks.size_bytes) == [1024, 512, 2 * MIB - 1536]


def test_unknown_fields_and_actions_are_named_and_left_out() -> None:
    contents = plain()
    contents["colour"] = "blue"
    contents["device_traces"][0].insert(1, event("teleport"))
    contents["device_traces"][0][0]["mood"] = [1, 2]
    snapshot = read_object(contents)
    assert len(snapshot.devices[0].events) == 5
    notes = " ".join(snapshot.notes)
    assert "the field colour of the file" in notes
    assert "the field mood of an event" in notes
    assert "the action teleport" in notes


def test_pinned_memory_of_the_host_is_no_part_of_it_and_no_surprise() -> None:
    """PyTorch writes it from 2.15 on."""
    contents = plain() | {
        "host_segments": [{"address": 4096, "total_size": 512, "blocks": []}],
        "host_traces": [[event("alloc")]],
    }
    snapshot = read_object(contents)
    assert len(snapshot.devices) == 1 and len(snapshot.devices[0].events) == 5
    assert "host" not in " ".join(snapshot.notes)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (["torch::unwind::unwind()", "torch::CapturedTraceback::gather(bool, bool, bool)", "at::empty_strided"], 2),
        (["torch::unwind::unwind()", "at::mm", "torch::autograd::generated::AddmmBackward0::apply(std::vector)"], 2),
        (["torch::unwind::unwind()", "at::mm", "train"], 2),
        (["torch::unwind::unwind()"], 0),
    ],
)
def test_where_the_user_wrote_nothing_the_frame_that_tells_most_stands_for_the_stack(
    functions: list[str], expected: int
) -> None:
    """Stacks with C++ frames begin with what wrote them down; those of a backward have no Python in them."""
    frames = [
        {"filename": "/home/me/train.py" if one == "train" else "??", "line": 0, "name": one} for one in functions
    ]
    snapshot = plain()
    snapshot["device_traces"] = [
        [event("segment_alloc", size=2 * MIB, frames=frames), event("alloc", size=1000, frames=frames)]
    ]
    trace = read_object(snapshot).devices[0]
    sites = sites_of(trace)
    stack = int(sites.stack[-1])
    assert trace.words[trace.frames["function"][sites.frame[stack]]] == functions[expected]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor, A<at::Tensor> >&&)", "AddmmBackward0"),
        ("void at::native::reduce<float, at::sum<float (float)> >(at::Iterator&, long) [clone .isra.0]", "at::native::reduce"),
        ("at::(anonymous namespace)::mm_out_functional::set_output(long)", "at::mm_out_functional::set_output"),
        ("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "AccumulateGrad"),
        ("torch::autograd::InputMetadata::reduce_grad(at::Tensor&) const", "InputMetadata::reduce_grad"),
        ("cudaMalloc", "cudaMalloc"),
        ("mine::apply(int)", "mine::apply"),
    ],
)  # fmt: skip
def test_a_function_of_cpp_is_called_by_its_name_alone(function: str, expected: str) -> None:
    assert brief(function) == expected


def test_a_frame_of_cpp_is_told_without_a_file_that_nobody_has() -> None:
    snapshot = plain()
    frames = [
        {"filename": "??", "line": 0, "name": "torch::autograd::generated::MulBackward0::apply(std::vector<int>&&)"}
    ]
    snapshot["device_traces"] = [
        [event("segment_alloc", size=2 * MIB, frames=frames), event("alloc", size=1000, frames=frames)]
    ]
    trace = read_object(snapshot).devices[0]
    frame = frame_of(trace, int(sites_of(trace).frame[int(sites_of(trace).stack[-1])]))
    assert (frame.file, str(frame)) == ("", "C++ MulBackward0")


def test_a_flamegraph_of_stacks_with_cpp_ends_in_what_was_called() -> None:
    """As it does without C++; where no Python ran, in the node."""
    recording = [("??", 0, "torch::unwind::unwind()"), ("memory_snapshot.cpp", 0, "gather_with_cpp()")]
    python = [
        ("linear.cpp", 0, "at::linear(at::Tensor)"),
        ("/usr/lib/python3/site-packages/torch/nn/modules/linear.py", 125, "forward"),
        ("ceval.c", 0, "_PyEval_EvalFrame"),
        ("/home/me/train.py", 87, "main"),
        ("main.c", 0, "pymain_main"),
    ]
    backward = [("??", 0, "at::mm(at::Tensor)"), ("??", 0, "torch::autograd::generated::MmBackward0::apply(int)")]
    snapshot = plain()
    stacks = [
        [{"filename": file, "line": line, "name": name} for file, line, name in (*recording, *calls)]
        for calls in (python, backward)
    ]
    snapshot["device_traces"] = [
        [
            event("segment_alloc", size=2 * MIB, frames=stacks[0]),
            event("alloc", size=1024, frames=stacks[0]),
            event("alloc", addr=0x7F0000000000 + MIB, size=1024, frames=stacks[1]),
        ]
    ]
    trace = read_object(snapshot).devices[0]
    made = flame(trace, sites_of(trace), 2)
    assert {(box.level, box.name, box.kind) for box in made.boxes if not box.name.startswith("no stack")} >= {
        (0, "main train.py:87", "own"),
        (1, "forward linear.py:125", "library"),
        (0, "C++ MmBackward0", "library"),
    }
    assert not any("unwind" in box.name or "PyEval" in box.name for box in made.boxes)


def test_each_device_has_a_trace_of_its_own() -> None:
    contents = plain()
    other = [{**one, "addr": one["addr"] + MIB} for one in contents["device_traces"][0]]
    contents["device_traces"] = [contents["device_traces"][0], [], other]
    contents["segments"].append({**contents["segments"][0], "device": 2, "address": 0x7F0000000000 + MIB})
    snapshot = read_object(contents)
    assert [trace.device for trace in snapshot.devices] == [0, 2]
    assert snapshot.devices[1].events.address[0] == 0x7F0000000000 + MIB


def test_without_steps_or_phases_nothing_is_called_input_or_temporary() -> None:
    """Input goes within two steps, temporaries within a phase. The stacks of this file name a program, but no training."""
    frames = [{"filename": "train.py", "line": 9, "name": "train"}]
    first, second = 0x7F0000000000, 0x7F0000000400
    actions = [("alloc", first), ("free_requested", first), ("free_completed", first), ("alloc", second)]
    trace = [event(action, addr=at, size=1024, frames=frames) for action, at in actions]
    contents = {**plain(), "segments": [], "device_traces": [trace]}
    (trace,) = read_object(contents).devices
    assert {CATEGORIES[code] for code in categories_of(trace)} == {"unknown"}
    assert summary(trace)["step"] is None, "the peak is in no known step"
    assert predict(StepFacts(trace)).step is None


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


@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
def test_globals_are_named_and_nothing_is_executed(protocol: int, tmp_path: Path) -> None:
    bad = tmp_path / "executed"
    snapshot = refusal(pickle.dumps({**plain(), "extra": Harmful(bad)}, protocol))
    assert "the global posix.mkdir" in snapshot
    assert "Nothing was executed" in snapshot
    assert not bad.exists()


def test_objects_of_elsewhere_are_refused() -> None:
    assert "object outside of it" in refusal(b"\x80\x04\x8c\x03abcQ.")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 a zip file", "a checkpoint"),
        (b"(dp0\n.", "no dict with a key 'segments'"),
        (b"no pickle", "no pickle"),
        (gzip.compress(gzip.compress(b"\x80\x04N.")), "gzipped twice"),
        (b"\x28\xb5\x2f\xfd packed", "zstd"),
        (pickle.dumps([1, 2, 3]), "nothing in it is a segment"),
        (pickle.dumps(b"weights"), "more than the plain data of a snapshot needs: the opcode SHORT_BINBYTES"),
        (b"\x80\x04]" + b"r" + struct.pack("<I", 0x7FFFFFFF) + b".", "LONG_BINPUT"),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", "cut off"),
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.", "BYTEARRAY8"),
        (b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".", "nothing in it is a segment"),
        (b"\x80\x04)" + b"\x85" * 100_000 + b"}\x940h\x00N" + b"s.", "damaged"),
        (b'{"traceEvents": []}', "Chrome trace"),
        (b'  [{"a": 1}]', "JSON"),
        (b"<!DOCTYPE html>", "HTML"),
        (b"\x80\x04(" + b"(" * 2_000_000, "nests"),
        (b"\x80\x04a.", "damaged"),
        (b"\x80\x04h\x05.", "damaged"),
        (b"\x80\x04N", "cut off"),
        (b"\x80\x04NR.", "REDUCE"),
        (b"\x1f\x8b\x08\x00 no gzip at all", "damaged"),
        (gzip.compress(pickle.dumps(list(range(1000))))[:-20], "cut off"),
    ],
    # the bytes would make names of megabytes, and gzip's hold the second at which each worker read this file
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_bytes_that_are_no_snapshot_say_why(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_sizes_are_bounded() -> None:
    assert "up to 1,000 can be read" in refusal(gzip.compress(b"\x80\x04(" + b"N" * 10_000_000), max_bytes=1000)
    assert "more than 9,000,000 bytes of memory" in refusal(
        b"\x80\x04](" + b"N" * 3_000_000 + b"e.", max_memory_bytes=9_000_000
    )
    trace = plain()["device_traces"][0]
    assert "more than 100,000 events" in refusal(
        {**plain(), "device_traces": [trace * 10_000] * 100}, max_events=100_000
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda snapshot: [1, {"total_size": 3, "segment_type": "small", "blocks": []}], "segments: no dict"),
        (lambda snapshot: {"a": 1}, "no dict with a key 'segments'"),
        (lambda snapshot: snapshot | {"segments": 7}, "segments: no list"),
        (lambda snapshot: snapshot | {"device_traces": [[7]]}, "an event: no dict"),
        (lambda snapshot: snapshot | {"device_traces": [[event("alloc", size=1.5)]]}, "size of an event: 1.5"),
        (lambda snapshot: snapshot | {"device_traces": [[event("alloc", size=-5)]]}, "below 0"),
        (lambda snapshot: snapshot | {"device_traces": [[event("alloc", addr=1.5)]]}, "addr of an event: 1.5"),
        (
            lambda snapshot: snapshot | {"device_traces": [[event("alloc", stream="main")]]},
            "stream of an event: 'main'",
        ),
        (
            lambda snapshot: snapshot | {"device_traces": [[event("alloc", size=1 << 50)] * 5000]},
            "their sum is out of range",
        ),
        (
            lambda snapshot: snapshot | {"device_traces": [[{"action": "alloc"}]]},
            "missing, expected an integer",
        ),
        (lambda snapshot: snapshot | {"device_traces": [[event("alloc", pool_id="x")]]}, "the id of a pool"),
        (
            lambda snapshot: snapshot | {"segments": [segment([block(1024, 7)])]},
            "state of a block: 7, expected a word",
        ),
        (lambda snapshot: snapshot | {"segments": [segment([block(1024)], total_size=2048)]}, "do not fill"),
        (
            lambda snapshot: snapshot | {"segments": [segment([block(1024)], segment_type=3)]},
            "segment_type of a segment: 3",
        ),
        (lambda snapshot: snapshot | {"segments": [segment([block(1024)], device="cuda")]}, "device"),
        (lambda snapshot: snapshot | {"segments": [], "device_traces": []}, "empty"),
        (lambda snapshot: snapshot | {"allocator_settings": 5}, "allocator_settings"),
    ],
)
def test_an_invalid_value_names_its_field(change: Any, words: str) -> None:
    assert words in refusal(change(plain()))


@pytest.mark.parametrize("protocol", [0, 1, 4])
def test_damaged_files_give_a_word_or_a_snapshot_and_never_another_error(protocol: int) -> None:
    """Cut anywhere; and a byte changed anywhere, 3,000 times from one seed."""
    data = pickle.dumps(plain(), protocol)
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


# ---- other picklers, and files of unusual shapes ----


def same_as_dumped(snapshot: dict[str, Any], data: bytes) -> None:
    """A pickle written in another way gives what pickle.dumps of the same gives."""
    (one,), (other,) = read(data).devices, read(pickle.dumps(snapshot)).devices
    for name in ("action", "address", "size_bytes", "time_ns", "pool"):
        assert np.array_equal(getattr(one.events, name), getattr(other.events, name)), name
    told_stacks = []
    for trace in (one, other):
        frames = zip(trace.frames["function"].tolist(), trace.frames["line"].tolist(), strict=True)
        words = [(trace.words[function], line) for function, line in frames]
        told_stacks.append([[words[at] for at in trace.stacks[stack]] for stack in trace.events.stack.tolist()])
    assert told_stacks[0] == told_stacks[1]


def test_a_pickle_without_memo_and_one_of_single_items_is_read() -> None:
    """As PyTorch's own C++ writes it, protocol 2 and no object told twice; and as the pickler in Python does, a dict at a time."""
    snapshot = plain()
    out = io.BytesIO()
    plainly = pickle._Pickler(out, 2)  # type: ignore[attr-defined]
    plainly.fast = True  # no memo
    plainly.dump(snapshot)
    same_as_dumped(snapshot, out.getvalue())

    def one_by_one(value: Any) -> bytes:
        if isinstance(value, dict):
            return b"}" + b"".join(one_by_one(key) + one_by_one(item) + b"s" for key, item in value.items())
        if isinstance(value, list):
            return b"]" + b"".join(one_by_one(item) + b"a" for item in value)
        return pickle.dumps(value, 2)[2:-1].replace(b"q\x00", b"").replace(b"q\x01", b"").replace(b"q\x02", b"")

    snapshot["device_traces"] = [[dict(reversed(one.items())) for one in snapshot["device_traces"][0]]]
    same_as_dumped(snapshot, b"\x80\x02" + one_by_one(snapshot) + b".")


def test_a_pickle_that_makes_lists_and_dicts_from_a_mark_is_read() -> None:
    """LIST, DICT and LONG4, which protocol 2 and later still have; numbers in more bytes than they need."""

    def from_marks(value: Any) -> bytes:
        if isinstance(value, dict):
            return b"(" + b"".join(from_marks(key) + from_marks(item) for key, item in value.items()) + b"d"
        if isinstance(value, list):
            return b"(" + b"".join(from_marks(item) for item in value) + b"l"
        if isinstance(value, tuple):
            return b"(" + b"".join(from_marks(item) for item in value) + b"t"
        if type(value) is int:
            return b"\x8b" + struct.pack("<i", 11) + value.to_bytes(11, "little", signed=True)
        if isinstance(value, str):
            return b"X" + struct.pack("<I", len(value)) + value.encode()
        return pickle.dumps(value, 2)[2:-1]

    snapshot = plain()
    trace = snapshot["device_traces"][0]
    snapshot["device_traces"] = [
        [*trace, *(event("alloc", addr=0x7F1000000000 + 512 * at, size=1) for at in range(20_000))]
    ]
    same_as_dumped(snapshot, b"\x80\x02" + from_marks(snapshot) + b".")
    for broken in (b"l.", b"d.", b"(Nd."):
        assert "damaged" in refusal(b"\x80\x02" + broken)
    assert "the opcode LIST" in refusal(b"\x80\x02(}(X\x04\x00\x00\x00lineK\x01uK\x05l.")


def test_a_stack_of_ten_thousand_frames_and_lists_as_pools_are_read() -> None:
    snapshot = plain()
    deep = [{"name": f"f{at}", "filename": "deep.py", "line": at} for at in range(10_000)]
    snapshot["device_traces"][0][1].update(frames=deep, pool_id=[3, 4])
    (trace,) = read_object(snapshot).devices
    stack = trace.stacks[trace.events.stack[1]]
    assert [int(trace.frames["line"][at]) for at in stack] == list(range(10_000))
    assert trace.pools[trace.events.pool[1]] == (3, 4)


def test_stacks_that_are_told_anew_each_time_are_kept_once_and_others_apart() -> None:
    """A hundred thousand events, each with frames of its own that say the same as 500 others' do; 150 bytes an event at most."""
    events = 100_000
    contents = plain()
    contents["device_traces"] = [
        [
            event("alloc", addr=512 * at, size=1, frames=[{"name": "f", "filename": "a.py", "line": at % 200}])
            for at in range(events)
        ]
    ]
    seen: list[int] = []
    snapshot = read(pickle.dumps(contents), progress=lambda done, total: seen.append(done))
    assert len(snapshot.devices[0].stacks) == 201  # with that of the block
    assert seen == sorted(seen)
    tables, _ = stream.run(
        pickle.dumps({**contents, "device_traces": [[{**one, "frames": FRAMES} for one in contents["device_traces"][0]]]}),
        max_bytes=1 << 30, max_table_bytes=1 << 30,
    )  # fmt: skip
    assert sum(table.nbytes for table in tables) < 150 * events


def test_frames_that_go_on_growing_after_their_use_are_refused() -> None:
    frame = b"}(\x8c\x08filename\x8c\x01a\x8c\x04lineK\x01u"
    event_with = b"}(\x8c\x06action\x8c\x05alloc\x8c\x06frames]\x94" + frame + b"au"
    assert "changes a list or dict after its use" in refusal(b"\x80\x04]" + event_with + b"ah\x00" + frame + b"a.")


# ---- files of other times ----


def test_files_of_torch_1_13_and_2_0_tell_of_blocks_by_their_history() -> None:
    """No requested_size, no address and no frames of a block, but a list of what was allocated there; events without times."""
    contents = plain()
    last = {"addr": 0x7F0000000000, "real_size": 1000, "frames": FRAMES, "cpp_frames": ["at::empty"]}
    segments = [
        {
            "device": 0, "address": 0x7F0000000000, "total_size": 2 * MIB, "allocated_size": 1024, "active_size": 1024,
            "stream": 0, "segment_type": "small",
            "blocks": [
                {"size": 1024, "state": "active_allocated", "history": [last, {"addr": 0x7F0000000000, "real_size": 7}]},
                {"size": 512, "state": "active_pending_free", "history": [{"addr": 0x7F0000000400, "real_size": 5}]},
                {"size": 2 * MIB - 1536, "state": "inactive"},
            ],
        }
    ]  # fmt: skip
    old = [
        {key: one[key] for key in ("action", "addr", "size", "stream", "frames")}
        for one in contents["device_traces"][0]
    ]
    old[1].pop("frames")
    for snapshot in (
        read_object({"segments": segments, "device_traces": [old[:3]]}),
        read_object({"segments": segments}),
        read_object(segments),  # torch.cuda.memory_snapshot()
        read(pickle.dumps(segments, 2)),
    ):
        assert snapshot.notes == []
        (trace,) = snapshot.devices
        blocks = trace.end.blocks
        assert blocks.requested_bytes[:2].tolist() == [1000, 5]
        assert (blocks.address - 0x7F0000000000).tolist() == [0, 1024, 1536]
        assert trace.end.allocated_bytes == 1024
        assert trace.stacks[blocks.stack[0]] == [0, 1]
        assert [trace.words[at] for at in trace.frames["function"]] == ["forward", "main"]
        assert int(blocks.stack[1]) == -1
    assert "history of a block" in refusal(
        [{**segments[0], "blocks": [{"size": 2 * MIB, "state": "inactive", "history": [4]}]}]
    )


def test_frees_that_were_not_recorded_are_told_or_made_up_for() -> None:
    """``skip_actions``: with the end of a free alone missing all is known; with both gone, what cannot be is said."""
    snapshot = plain()
    trace = snapshot["device_traces"][0]
    snapshot["device_traces"] = [trace[:4]]
    (known,) = read_object(snapshot).devices
    assert known.lives.completed_event.tolist() == [4, 3]
    assert list(missing_event_notes(known)) == []
    snapshot["device_traces"] = [trace[:3]]
    (unknown,) = read_object(snapshot).devices
    assert "1 allocations neither end" in " ".join(missing_event_notes(unknown))


def test_frees_of_what_is_free_already_end_nothing() -> None:
    """A free told twice, or its end before its request: the rest of the history stands, and can be replayed."""
    snapshot = plain()
    trace = [{key: value for key, value in one.items() if key != "time_us"} for one in snapshot["device_traces"][0]]
    snapshot["device_traces"] = [[*trace, *trace[3:], trace[4], trace[3]]]
    (read_twice,) = read_object(snapshot).devices
    assert read_twice.lives.alloc_event.tolist() == [1, 2]
    assert read_twice.lives.completed_event.tolist() == [9, 4]
    assert len(read_twice.beginning.blocks) == 0
    snapshot["device_traces"] = [[trace[4], *trace[:3]]]
    with pytest.raises(BadWindow, match="contradict each other"):
        _ = read_object(snapshot).devices[0].beginning
    asks_too_much = event("oom", size=1 << 61)
    asks_too_much["device_free"] = asks_too_much.pop("addr")
    assert (
        read_object({**plain(), "device_traces": [[*trace, asks_too_much]]}).devices[0].events.size_bytes[-1] == 1 << 61
    )


def test_what_a_program_said_of_its_events_is_kept() -> None:
    snapshot = plain()
    trace = snapshot["device_traces"][0]
    trace[1]["user_metadata"] = "batch 7"
    lines = [
        '  File "train.py", line 3, in main\n    step()\n',
        '  File "model.py", line 8, in forward\n    self.norm(x)\n',
    ]
    trace[2].update(compile_context="0/0", forward_frames=lines)
    trace[3]["forward_frames"] = ["no frame"]
    (trace,) = read_object(snapshot).devices
    assert [trace.label("user_metadata", at) for at in range(5)] == [None, "batch 7", None, None, None]
    assert [trace.label("compile_context", at) for at in range(5)] == [None, None, "0/0", None, None]
    stacks = trace.labels["forward_stack"].tolist()
    told_lines = [(trace.words[trace.frames["file"][at]], trace.frames["line"][at]) for at in trace.stacks[stacks[2]]]
    assert told_lines == [("model.py", 8), ("train.py", 3)]
    assert stacks[3] == -1
    assert [trace.words[at] for at in trace.frames["function"]] == ["forward", "main", "forward", "main"]
    (trace,) = read_object(plain()).devices
    assert trace.labels == {}


def test_stretches_that_a_program_named_are_those_of_its_device() -> None:
    """Nested ones, ones of two threads that cross, one from before the history and one beyond it."""
    snapshot = plain()
    for at, one in enumerate(snapshot["device_traces"][0]):
        one["time_us"] = 1000 + 10 * at
    rows = [
        ("START", 995, "step"), ("START", 1005, "forward"), ("START", 1010, "other thread"), ("END", 1015, "forward"),
        ("END", 1025, "other thread"), ("END", 1030, "step"), ("END", 1035, "earlier"), ("START", 1036, "later"),
    ]  # fmt: skip
    annotations: list[Any] = [
        {"stage": stage, "time_us": time, "device": 0, "name": name} for stage, time, name in rows
    ]
    snapshot["external_annotations"] = [*annotations, {**annotations[0], "device": 1}, 5, {"stage": "MIDDLE"}, "text"]
    (trace,) = read_object(snapshot).devices
    marks = trace.annotations
    found = {
        trace.words[name]: (first, end, depth)
        for first, end, depth, name in zip(marks.first, marks.end, marks.depth, marks.name, strict=True)
    }
    assert found == {
        "earlier": (0, 4, 0), "step": (0, 3, 1), "forward": (1, 2, 2), "other thread": (1, 3, 3), "later": (4, 5, 0),
    }  # fmt: skip
    assert [trace.words[marks.name[at]] for at in marks.around(1)] == ["earlier", "step", "forward", "other thread"]
    spans = [(span.name, span.first, span.end) for span in ruler(trace, -1, 5)]
    assert spans == [("step", 0, 1), ("other thread", 1, 3), ("earlier", 3, 4), ("later", 4, 5)]
