"""Snapshots as PyTorch would have written them, of any length."""

from __future__ import annotations

import pickle
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

MIB = 1 << 20
BASE = 0x7F0000000000
MARKUP = "<b>evil</b>%{x}.py"


def snapshot_of(allocations: int, *, devices: int = 1, depth: int = 2) -> dict[str, Any]:
    """Allocations of 1 MiB each, of which every second is freed at once, as PyTorch would have written them."""
    frames = [
        {"name": f"layer{at}", "filename": MARKUP if at == 0 else "train.py", "line": at + 1} for at in range(depth)
    ]

    def event(action: str, addr: int, size: int, at: int) -> dict[str, Any]:
        return {
            "action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1_700_000_000_000_000 + at, "frames": frames,
            "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0),
        }  # fmt: skip

    traces, segments = [], []
    for device in range(devices):
        trace, blocks = [], []
        for at in range(allocations):
            place = BASE + at * 2 * MIB
            trace += [event("segment_alloc", place, 2 * MIB, 4 * at), event("alloc", place, MIB, 4 * at + 1)]
            blocks.append([
                {"address": place, "size": MIB, "requested_size": MIB, "state": "active_allocated" if at % 2 else "inactive",
                 "frames": frames},
                {"address": place + MIB, "size": MIB, "requested_size": 0, "state": "inactive", "frames": []},
            ])  # fmt: skip
            if at % 2 == 0:
                trace += [event(f"free_{word}", place, MIB, 4 * at + 2) for word in ("requested", "completed")]
                blocks[-1] = [{**blocks[-1][0], "size": 2 * MIB}]
        segments += [
            {
                "device": device, "address": BASE + at * 2 * MIB, "total_size": 2 * MIB, "stream": 0, "segment_type": "small",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": inside,
            }
            for at, inside in enumerate(blocks)
        ]  # fmt: skip
        traces.append(trace)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_round_threshold": 0}
    return {"segments": segments, "device_traces": traces, "allocator_settings": settings, "external_annotations": []}


def two_sizes() -> dict[str, Any]:
    """20 MiB that are given back and then 30: two segments by default, one where segments can grow. As PyTorch does it."""
    first, second = BASE, BASE + 64 * MIB
    events = [
        ("segment_alloc", first, 20), ("alloc", first, 20), ("free_requested", first, 20), ("free_completed", first, 20),
        ("segment_alloc", second, 30), ("alloc", second, 30),
    ]  # fmt: skip
    trace = [
        {"action": action, "addr": addr, "size": mib * MIB, "stream": 0, "time_us": 1_700_000_000_000_000 + at, "pool_id": (0, 0),
         "frames": [{"name": "train", "filename": "train.py", "line": at}]}
        for at, (action, addr, mib) in enumerate(events)
    ]  # fmt: skip
    segments = [
        {
            "device": 0, "address": addr, "total_size": mib * MIB, "stream": 0, "segment_type": "large",
            "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
            "blocks": [{"address": addr, "size": mib * MIB, "requested_size": mib * MIB, "state": state, "frames": []}],
        }
        for addr, mib, state in ((first, 20, "inactive"), (second, 30, "active_allocated"))
    ]  # fmt: skip
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}}


class HeldAtStart:
    """The next process that converts a snapshot, stopped by the kernel before it has read anything. Made before the upload."""

    def __init__(self, snapshots: Any) -> None:
        self._conversions = conversions = snapshots.conversions
        self.process: subprocess.Popen[bytes] | None = None
        start = conversions._process

        def stopped(file: Path, folder: Path) -> subprocess.Popen[bytes]:
            conversions._process = start
            if conversions._prepared is not None:  # it would read as soon as it knows the file
                conversions._prepared.send_signal(signal.SIGSTOP)
            process: subprocess.Popen[bytes] = start(file, folder)
            process.send_signal(signal.SIGSTOP)
            self.process = process
            return process

        conversions._process = stopped

    def is_held(self) -> bool:
        """True once the server knows the process."""
        job = self._conversions._running
        return self.process is not None and job is not None and job.process is self.process

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class Held:
    """Process that converts a snapshot, stopped by the kernel: ``has_read`` when it has read the file, else amid its reading."""

    def __init__(self, snapshots: Any, ident: str, *, has_read: bool = False) -> None:
        deadline = time.monotonic() + 120
        while True:
            job = snapshots.conversions._running
            found = job is not None and ident == job.snapshot and job.process is not None
            if found and (job.curves if has_read else job.done):
                break
            assert time.monotonic() < deadline, "it is not converted"
            time.sleep(0.001)
        self.process = job.process
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128,roundup_power2_divisions:[512:2,>:8]", "max_split_size": 134217728,
    "garbage_collection_threshold": 0.0, "expandable_segments": False, "max_round_threshold": -1,
    "roundup_power2_divisions": {"256": 1, "512": 2, "1024": 8},
}  # fmt: skip
"""As PyTorch 2.13 tells them, less some."""
IN_FORCE = {
    "max_split_size_mb": 128.0, "garbage_collection_threshold": 0.0, "expandable_segments": False, "max_round_threshold": -1,
    "roundup_power2_divisions": "[256:1,512:2,1024:8]",
}  # fmt: skip
"""What is shown of them beside the text that was given."""
AS_TEXT = "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,1024:8,>:0]"
"""The settings in force, as one text."""


def with_private_pool(answer: dict[str, Any], segments: int) -> dict[str, Any]:
    """The same with the last segments of its first device in a CUDA graph's pool, and SETTINGS."""
    first = [one for one in answer["segments"] if one["device"] == 0]
    private = {one["address"] for one in first[-segments:]}
    answer["segments"] = [
        {**one, "segment_pool_id": (0, 1)} if one["device"] == 0 and one["address"] in private else one
        for one in answer["segments"]
    ]
    answer["device_traces"][0] = [
        {**one, "pool_id": (0, 1)} if one["addr"] in private else one for one in answer["device_traces"][0]
    ]
    return {**answer, "allocator_settings": SETTINGS}


def file_of_stacks(allocations: int) -> bytes:
    """The pickle of as many allocations of 512 bytes that all live on, each of a stack that no other one has.

    What a training would write whose every allocation comes from a line of its own, which a thousand lines call. Made by numpy, a
    second a million, since ``pickle.dumps`` takes a minute of that.
    """
    words = (
        "action", "alloc", "addr", "size", "stream", "frames", "name", "filename", "line", "f", "train.py", "main", "step",
        "address", "requested_size", "state", "active_allocated",
    )  # fmt: skip
    at = {word: b"h" + bytes([place]) for place, word in enumerate(words)}
    number = np.arange(allocations)

    def text(word: str) -> bytes:
        return b"\x8c" + bytes([len(word)]) + word.encode()

    def rows(*parts: bytes | tuple[str, Any]) -> bytes:
        """Each row is these bytes, with numbers in between: (dtype, a column)."""
        fields = [f"V{len(part)}" if isinstance(part, bytes) else part[0] for part in parts]
        made = np.empty(allocations, np.dtype([(f"p{nth}", kind) for nth, kind in enumerate(fields)]))
        for nth, part in enumerate(parts):
            made[f"p{nth}"] = np.void(part) if isinstance(part, bytes) else part[1]
        return made.tobytes()

    def frame(name: str, line: Any) -> tuple[Any, ...]:
        head = b"}(" + at["name"] + at[name] + at["filename"] + at["train.py"] + at["line"] + b"J"
        return head, ("<i4", line), b"u"

    address = BASE + 512 * number
    events = rows(
        b"}(" + at["action"] + at["alloc"] + at["addr"] + b"\x8a\x08", ("<i8", address),
        at["size"] + b"M\x00\x02" + at["stream"] + b"K\x00" + at["frames"] + b"]r", ("<i4", len(words) + number), b"(",
        *frame("f", 1000 + number), *frame("step", 1 + number % 999), *frame("main", 0 * number), b"eu",
    )  # fmt: skip
    blocks = rows(
        b"}(" + at["address"] + b"\x8a\x08", ("<i8", address), at["size"] + b"M\x00\x02" + at["requested_size"] + b"M\x00\x02",
        at["state"] + at["active_allocated"] + at["frames"] + b"j", ("<i4", len(words) + number), b"u",
    )  # fmt: skip
    segment = {
        "device": 0, "address": BASE, "total_size": 512 * allocations, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
    }  # fmt: skip
    remembered = b"".join(text(word) + b"q" + bytes([place]) + b"0" for place, word in enumerate(words))
    others = b"".join(text(key) + _unremembered(value) for key, value in segment.items())
    return (
        b"\x80\x04" + remembered + b"}(" + text("device_traces") + b"](](" + events + b"ee"
        + text("segments") + b"](}(" + others + text("blocks") + b"](" + blocks + b"eueu."
    )  # fmt: skip


def _unremembered(value: Any) -> bytes:
    """A plain value in a pickle that refers to no other place."""
    return pickle.dumps(value, 2)[2:-1].replace(b"q\x00", b"")
