"""PyTorch's own viewer, ``torch/cuda/_memory_viz.py``, says of what was read what it says of the file."""

from __future__ import annotations

import gzip
import pickle
from typing import Any

import numpy as np
import pytest
from small_snapshot import read_object

from vramscope.protocol.window import ACTIONS, STATES
from vramscope_server.analysis.snapshot_format.reader import read
from vramscope_server.analysis.trace.trace import reserved_after


def as_pytorch_tells(snapshot: Any) -> dict[str, Any]:
    """What was read, in the shape that PyTorch's viewer takes: made of our columns alone."""
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    for trace in snapshot.devices:

        def frames(stack: int, trace: Any = trace) -> list[dict[str, Any]]:
            reported = trace.stacks[stack] if stack >= 0 else []
            return [
                {
                    "name": trace.words[trace.frames["function"][at]], "filename": trace.words[trace.frames["file"][at]],
                    "line": int(trace.frames["line"][at]),
                }
                for at in reported
            ]  # fmt: skip

        end, first = trace.end, len(segments)
        segments += [
            {"device": trace.device, "address": address, "total_size": size, "stream": stream, "allocated_size": 0, "blocks": []}
            for address, size, stream in zip(
                end.segments.address.tolist(), end.segments.size_bytes.tolist(), end.segments.stream.tolist(), strict=True
            )
        ]  # fmt: skip
        for at in range(len(end.blocks)):
            state, size = STATES[end.blocks.state[at]], int(end.blocks.size_bytes[at])
            home = segments[first + int(end.blocks.segment[at])]
            home["allocated_size"] += size if state == "active_allocated" else 0
            home["blocks"].append({
                "size": size, "state": state, "requested_size": int(end.blocks.requested_bytes[at]),
                "frames": frames(int(end.blocks.stack[at])),
            })  # fmt: skip
        traces += [[] for _ in range(trace.device + 1 - len(traces))]
        columns = (trace.events.action, trace.events.address, trace.events.size_bytes, trace.events.stream)
        traces[trace.device] = [
            {
                "action": ACTIONS[action], "device_free" if ACTIONS[action] == "oom" else "addr": place,
                "size": size, "stream": stream,
            }
            for action, place, size, stream in zip(*(column.tolist() for column in columns), strict=True)
        ]  # fmt: skip
    return {"segments": segments, "device_traces": traces}


def said_by(viz: Any, snapshot: dict[str, Any]) -> dict[str, str]:
    """All that PyTorch's viewer says in text: ``stats``, ``trace``, and what its flamegraphs are made of."""
    # an action that it does not know it prints as it stands
    keys = ("action", "addr", "device_free", "size", "stream")
    in_order = {
        "segments": sorted(snapshot["segments"], key=lambda one: (one["device"], one["address"])),
        "device_traces": [
            [{key: one[key] for key in keys if key in one} for one in trace] for trace in snapshot["device_traces"]
        ],
    }
    return {
        "segsum": viz.segsum(in_order),
        "trace": viz.trace(in_order),
        **{name: getattr(viz, name)(in_order, format_flamegraph=lambda text: text) for name in ("segments", "memory")},
    }


@pytest.mark.parametrize("kind", ["lengths", "evaluation", "ring", "died", "two devices"])
def test_totals_are_those_of_pytorchs_own_viewer(recorded: dict[str, Any], kind: str) -> None:
    """``torch/cuda/_memory_viz.py`` says the same of what was read as of the file: each total, each segment, each event.

    Its sums go over all devices. ``died`` ran out of memory, ``ring`` lost its first events.
    """
    viz = pytest.importorskip("torch.cuda._memory_viz")

    def file(name: str) -> dict[str, Any]:
        with gzip.open(recorded[name].path) as opened:
            snapshot: dict[str, Any] = pickle.load(opened)
        return snapshot

    if kind == "two devices":
        contents, other = file("lengths"), file("ring")
        contents["segments"] += [{**one, "device": 1} for one in other["segments"]]
        contents["device_traces"] = [contents["device_traces"][0], other["device_traces"][0]]
        snapshot = read_object(contents)
    else:
        contents, snapshot = file(kind), read(recorded[kind].path)
    assert [trace.device for trace in snapshot.devices] == ([0, 1] if kind == "two devices" else [0])
    expected, found = said_by(viz, contents), said_by(viz, as_pytorch_tells(snapshot))
    assert {name: len(text) > 100 for name, text in expected.items()} == dict.fromkeys(expected, True)
    for name, text in expected.items():
        assert found[name] == text, name
    for trace in snapshot.devices:
        here = [one for one in contents["segments"] if one["device"] == trace.device]
        assert trace.end.reserved_bytes == sum(one["total_size"] for one in here)
        assert trace.end.allocated_bytes == sum(one["allocated_size"] for one in here)


@pytest.mark.parametrize("kind", ["lengths", "evaluation"])
def test_what_is_held_after_each_event_is_what_its_events_add_up_to(recorded: dict[str, Any], kind: str) -> None:
    """As the viewer's timeline draws it: plus what is allocated, minus what is given back; of histories without a gap."""
    with gzip.open(recorded[kind].path) as file:
        events = pickle.load(file)["device_traces"][0]
    sign = {"alloc": 1, "free_requested": -1}
    held = np.cumsum([sign.get(one["action"], 0) * one["size"] for one in events])
    (trace,) = read(recorded[kind].path).devices
    lives = trace.lives
    change = np.zeros(len(events) + 1, np.int64)
    np.add.at(change, lives.alloc_event, lives.requested_bytes)
    np.subtract.at(change, np.minimum(lives.free_requested_event, len(events)), lives.requested_bytes)
    assert np.array_equal(np.cumsum(change[:-1]), held)
    segments = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    reserved = np.cumsum([segments.get(one["action"], 0) * one["size"] for one in events])
    assert np.array_equal(reserved_after(trace)[1:], reserved)
