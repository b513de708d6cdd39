"""Sending a recorded window: in pieces through ring, sender, spool and sync, without loss of samples."""

from __future__ import annotations

import os
import threading
import time
from array import array
from random import Random
from typing import Any

import pytest
from collector import Collector, attached, sample
from training import Arrived, run

from vramscope.process import terminal
from vramscope.process.identity import random_id
from vramscope.protocol import messages as wire_messages
from vramscope.protocol import window
from vramscope.transport import batching
from vramscope.transport.ring import DEFAULT_BYTES, Ring, size_bytes
from vramscope.transport.sync import main as sync_main
from vramscope.transport.uploads import Artifact, Uploads


def windows_in(messages: list[Any]) -> list[window.Window]:
    """Return each complete window, in the order in which they began."""
    pieces: dict[str, dict[int, wire_messages.Piece]] = {}
    for message in messages:
        if isinstance(message, wire_messages.Piece):
            pieces.setdefault(message.artifact, {})[message.number] = message
    whole = [found for found in pieces.values() if len(found) == next(iter(found.values())).pieces]
    return [window.unpack(b"".join(found[number].data for number in sorted(found))) for found in whole]


def large_window(events: int) -> window.Window:
    """One that compresses badly."""
    random = Random(1)
    noise = array("q", [random.getrandbits(60) for _ in range(events)]).tobytes()
    nothing = window.Layout(segments=dict.fromkeys(window.SEGMENTS, b""), blocks=dict.fromkeys(window.BLOCKS, b""))
    return window.Window(
        device=0,
        device_name="a card",
        device_total_bytes=None,
        device_free_bytes=None,
        limit_bytes=None,
        torch="2.13.0",
        cuda=None,
        backend="native",
        settings="",
        settings_in_force={},
        reason="asked for",
        first_step=1,
        last_step=2,
        start=nothing,
        end=nothing,
        events=dict.fromkeys(window.EVENTS, noise),
        pools=[(0, 0)],
    )


def piece(data: bytes = b"x", **changes: Any) -> wire_messages.Piece:
    values = {"artifact": random_id(), "kind": "window", "number": 0, "pieces": 1, "about": {}, "data": data}
    return wire_messages.Piece(**{**values, **changes})


def test_a_large_window_waits_and_drops_no_sample() -> None:
    """A ring without a reader stays below a quarter. What is taken out is replaced until all pieces are there."""
    whole = window.pack(large_window(40_000))
    ring = Ring(max_bytes=4 * 1024 * 1024)
    uploads = Uploads(ring, lambda: 0, pace_s=0.001, name="windows")
    assert len(whole) > ring.max_bytes // 2
    uploads.put(lambda pause: [Artifact("window", {}, whole)])
    taken: list[Any] = []
    deadline = time.monotonic() + 20
    while not windows_in(taken):
        assert time.monotonic() < deadline
        ring.put(sample(len(taken)))
        assert ring.kept_bytes <= ring.max_bytes // 4 + wire_messages.MAX_PIECE_BYTES
        time.sleep(0.01)
        taken += ring.take(300_000)
    uploads.close(2.0)
    assert ring.dropped_messages == 0
    assert windows_in(taken) == [large_window(40_000)]


def test_unsent_windows_are_reported_once_at_the_end(capsys) -> None:
    """No room in the ring; and one that is being packed when the end has waited long enough."""
    terminal.forget_printed()
    ring = Ring(max_bytes=1024 * 1024)
    uploads = Uploads(ring, lambda: 0, pace_s=60.0, name="windows")
    uploads.put(lambda pause: [Artifact("window", {}, window.pack(large_window(40_000)))])
    ring.put(sample(1))
    began = time.monotonic()
    uploads.close(5.0)
    assert time.monotonic() - began < 4.0
    assert ring.dropped_messages == 0
    messages = ring.take(1 << 30)
    assert windows_in(messages) == [] and any(isinstance(message, wire_messages.Block) for message in messages)

    goes_on = threading.Event()
    uploads = Uploads(ring, lambda: 0, pace_s=0.0, name="profiles")

    def slow(pause: Any) -> list[Artifact]:
        goes_on.wait(60)
        return []

    uploads.put(slow)
    uploads.put(slow)
    uploads.close(0.01)
    goes_on.set()
    seen = [
        message.data["text"] for message in [*messages, *ring.take(1 << 30)] if isinstance(message, wire_messages.Event)
    ]
    assert seen == [
        "the session ended before all recorded windows were packed; missing: 1",
        "the session ended before all recorded profiles were packed; missing: 2",
    ]
    assert [line.removeprefix("vramscope: ") for line in capsys.readouterr().err.splitlines()] == seen


def test_windows_packed_in_time_cause_no_notice(capsys) -> None:
    ring = Ring()
    uploads = Uploads(ring, lambda: 0, pace_s=0.0, name="windows")
    uploads.put(lambda pause: [Artifact("window", {}, window.pack(large_window(10)))])
    uploads.close(60.0)
    (message,) = ring.take(1 << 30)
    assert isinstance(message, wire_messages.Piece) and capsys.readouterr().err == ""


def test_a_window_above_the_wire_limit_is_reported(capsys) -> None:
    terminal.forget_printed()
    ring = Ring()
    uploads = Uploads(ring, lambda: 0, pace_s=0.0, name="windows")
    uploads.put(
        lambda pause: [Artifact("window", {}, bytes(wire_messages.MAX_PIECES * wire_messages.MAX_PIECE_BYTES + 1))]
    )
    uploads.close(60.0)
    (message,) = ring.take(1 << 30)
    text = "a window is not sent: it has 268,435,457 bytes when packed, more than the 268,435,456 allowed"
    assert isinstance(message, wire_messages.Event) and message.data["text"] == text
    assert capsys.readouterr().err == f"vramscope: {text}\n"


def test_the_ring_counts_the_size_of_a_piece() -> None:
    data = os.urandom(wire_messages.MAX_PIECE_BYTES)
    assert len(data) < size_bytes(piece(data)) < len(data) + 4096
    ring = Ring(max_bytes=DEFAULT_BYTES)
    for _ in range(200):
        ring.put(piece(data))
    assert ring.kept_bytes <= DEFAULT_BYTES and ring.dropped_messages > 100


def test_a_batch_is_split_between_messages_never_in_a_piece() -> None:
    def body(*messages: wire_messages.Message) -> bytes:
        return wire_messages.encode(
            wire_messages.Batch(
                wire=1, session="s" * 8, run="r" * 8, rank=0, sequence=1, sent_ns=1, messages=list(messages)
            )
        )

    one, other = piece(b"one"), piece(b"other")
    assert batching.split(body(attached(), one, other, sample(1))) == ([attached(), one], [other, sample(1)])
    assert batching.split(body(one)) is None
    assert batching.merge([one, sample(1), other, sample(2)])[0] == one


# -- whole processes on the emulated GPU, or a real one ----------------------------------------------------------------

TRAIN = """
model(torch.zeros(1, 64, device=device))
agent.attach(model)
"""


@pytest.mark.gpu
def test_the_first_window_comes_unasked_others_on_request(collector, spool) -> None:
    collector.requests = [wire_messages.RECORD_WINDOW]
    run(
        TRAIN
        + """
train(5)
for _ in range(40):
    time.sleep(0.05)
    train(1)
""",
        collector,
        spool,
    )
    arrived = Arrived(collector)
    windows = windows_in(arrived.of(wire_messages.Piece))
    assert [w.reason for w in windows][:2] == ["the first steps", "asked for"]
    first, asked = windows[:2]
    assert (first.first_step, first.last_step, first.lost_events) == (1, 3, 0)
    assert asked.last_step == asked.first_step + 1 > 3
    about = next(p.about for p in arrived.of(wire_messages.Piece))
    assert about["reason"] == "the first steps" and about["events"] == len(first.events["action"]) // 8
    assert set(about) == {
        "device", "first_step", "last_step", "reason", "events", "lost_events", "bytes", "torch", "settings", "leaks",
        "peak_allocated_bytes",
    }  # fmt: skip
    assert isinstance(arrived.messages[-1][1], wire_messages.Ended), "nothing comes after the end"


@pytest.mark.gpu
def test_a_session_that_ends_in_its_first_window_sends_it(collector, spool) -> None:
    """A forked child sends nothing: the window is the parent's. A session with windows=0 records none."""
    output = run(
        """
import os
switch = torch._C._cuda_record_memory_history
agent.attach(model, windows=False)
train(4)
print("untouched", torch._C._cuda_record_memory_history is switch)
agent.detach()
"""
        + TRAIN
        + """
train(1)
if (child := os.fork()) == 0:
    os._exit(torch._C._cuda_record_memory_history.__module__ == "vramscope.recording.pytorch_history")
print("child", os.waitpid(child, 0)[1])
agent.detach()
print("history", torch._C._cuda_isHistoryEnabled(), repr(torch._C._cuda_getMemoryMetadata()))
train(1)
""",
        collector,
        spool,
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:128,large_segment_size_mb:64,per_process_memory_fraction:0.5",
    )
    assert "untouched True" in output
    assert "child 0" in output and "history False ''" in output
    (recorded,) = windows_in(Arrived(collector).of(wire_messages.Piece))
    assert recorded.notes == ["ended by the end of the session"]
    assert recorded.settings == "max_split_size_mb:128,large_segment_size_mb:64,per_process_memory_fraction:0.5"
    assert recorded.limit_bytes is not None and recorded.limit_bytes == recorded.device_total_bytes // 2
    in_force = recorded.settings_in_force
    assert (in_force["max_split_size_mb"], in_force["large_segment_size_mb"]) == (128, 64)
    assert in_force["max_non_split_rounding_mb"] == 64, "it follows the other where it is not given"


@pytest.mark.gpu
def test_sync_sends_spooled_windows_one_per_device(tmp_path, spool, monkeypatch) -> None:
    with Collector() as gone:
        pass
    output = run(
        """
devices = range(torch.cuda.device_count())
kept = [torch.zeros(1000, device=f"cuda:{number}") for number in devices]
agent.attach(model)
for step in range(4):
    for number in devices:
        kept[number] = torch.zeros((number + 1) * 1_000_000 + step, device=f"cuda:{number}")
    train(1)
print("devices", len(devices))
""",
        gone,
        spool,
        EMULATED_GPU_DEVICES="2",
    )
    monkeypatch.setenv("VRAMSCOPE_SPOOL_DIR", str(spool))
    with Collector() as collector:
        assert sync_main(["--server", collector.url]) == 0
        windows = windows_in(Arrived(collector).of(wire_messages.Piece))
    assert f"devices {len(windows)}" in output
    for number, recorded in enumerate(windows):
        assert (recorded.device, recorded.reason, recorded.last_step, recorded.lost_events) == (
            number, "the first steps", 3, 0,
        )  # fmt: skip
        asked = array("q", recorded.events["size_bytes"])
        assert [((number + 1) * 1_000_000 + step) * 4 in asked for step in range(4)] == [True, True, True, False]
