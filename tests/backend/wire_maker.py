"""Batches as an agent sends them, small and exact, for the server's tests."""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series

GIB = 1 << 30
SECOND = 1_000_000_000
_ids = itertools.count(1)


def new_id(kind: str = "r") -> str:
    """An id that the wire accepts, unlike all others of this process."""
    return f"{kind}{next(_ids):011d}"


def column(values: Iterable[int]) -> bytes:
    return np.asarray(list(values), "<i8").tobytes()


def samples(
    rows: int = 4, *, start_ns: int, every_ns: int = SECOND // 10, device: int = 0, **columns: Any
) -> wire_messages.Block:
    """``rows`` samples; columns given as one number or as a list."""
    made: dict[str, Any] = {
        "time_ns": [start_ns + i * every_ns for i in range(rows)],
        "step": list(range(rows)),
        "allocated_bytes": [GIB + i * 512 for i in range(rows)],
        "reserved_bytes": [2 * GIB] * rows,
        "inactive_split_bytes": [GIB // 4] * rows,
    } | columns
    packed = {name: column([v] * rows if isinstance(v, int) else v) for name, v in made.items()}
    return wire_messages.Block(stream="samples", device=device, rows=rows, columns=packed)


def steps(rows: int = 3, *, start_ns: int, first: int = 1, device: int = 0, **columns: Any) -> wire_messages.Block:
    """``rows`` steps of 0.1 s, from step ``first``."""
    made: dict[str, Any] = {
        "time_ns": [start_ns + i * SECOND // 10 for i in range(rows)],
        "step": [first + i for i in range(rows)],
        "duration_ns": SECOND // 10,
        "peak_allocated_bytes": [3 * GIB + (first + i) * 512 for i in range(rows)],
        "peak_reserved_bytes": 4 * GIB,
        "peak_phase": 3,
        "forward_ns": SECOND // 30,
        "forward_peak_allocated_bytes": 2 * GIB,
        "foreign_reset": 0,
        **{f"peak_{name}_bytes": GIB // 2 for name in series.CATEGORIES if name not in series.WITHIN_OTHER},
    } | columns
    packed = {name: column([v] * rows if isinstance(v, int) else v) for name, v in made.items()}
    return wire_messages.Block(stream="steps", device=device, rows=rows, columns=packed)


class Agent:
    """One process's attach: numbers its batches, and begins the first with Attached."""

    def __init__(
        self,
        run: str | None = None,
        *,
        rank: int = 0,
        world_size: int = 1,
        start_ns: int | None = None,
        devices: int = 1,
        **attached: Any,
    ) -> None:
        self.run = run or new_id()
        self.session = new_id("s")
        self.rank = rank
        self.sequence = 0
        self.start_ns = start_ns if start_ns is not None else time.time_ns()
        cards = [
            wire_messages.Device(index=i, name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{rank}-{i}", total_bytes=80 * GIB)
            for i in range(devices)
        ]
        fields: dict[str, Any] = {
            "project": "gpt2", "name": "a run", "host": "node1", "pid": 4242, "framework": "loop", "python": "3.11.7",
            "torch": "2.13.0", "cuda": "13.0", "driver": "580.1", "allocator_settings": "", "agent_version": "0.1.0",
        }  # fmt: skip
        self.attached = wire_messages.Attached(
            rank=rank, world_size=world_size, start_ns=self.start_ns, devices=cards, **(fields | attached)
        )

    def batch(
        self, *messages: wire_messages.BatchItem, sequence: int | None = None, sent_ns: int | None = None
    ) -> wire_messages.Batch:
        """The next batch, or the one numbered ``sequence``."""
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        first = (self.attached,) if sequence == 1 else ()
        return wire_messages.Batch(
            wire=wire_messages.WIRE_VERSION,
            session=self.session,
            run=self.run,
            rank=self.rank,
            sequence=sequence,
            sent_ns=sent_ns if sent_ns is not None else time.time_ns(),
            messages=[*first, *(m for m in messages if not isinstance(m, wire_messages.Scalars))],
            scalars=[m for m in messages if isinstance(m, wire_messages.Scalars)],
        )

    def body(self, *messages: wire_messages.BatchItem, **options: Any) -> bytes:
        return wire_messages.encode(self.batch(*messages, **options))

    def samples(self, rows: int = 4, at: float = 0.0, **columns: Any) -> wire_messages.Block:
        """Samples from ``at`` seconds after the start."""
        return samples(rows, start_ns=self.start_ns + int(at * SECOND), **columns)

    def steps(self, rows: int = 3, at: float = 0.0, **columns: Any) -> wire_messages.Block:
        return steps(rows, start_ns=self.start_ns + int(at * SECOND), **columns)

    def scalars(self, *, first: int = 1, at: float = 0.0, **columns: list[float | None]) -> wire_messages.Scalars:
        """Numbers by name, 0.1 s apart, from step ``first``; None: not told in that row."""
        rows = len(next(iter(columns.values())))
        return wire_messages.Scalars(
            rows=rows,
            time_ns=column(self.start_ns + int((at + 0.1 * i) * SECOND) for i in range(rows)),
            step=column(first + i for i in range(rows)),
            columns={
                name: b"".join(series.ABSENT if value is None else struct.pack("<d", value) for value in values)
                for name, values in columns.items()
            },
        )

    def ended(self, state: Any = "finished", at: float = 10.0, **fields: Any) -> wire_messages.Ended:
        return wire_messages.Ended(time_ns=self.start_ns + int(at * SECOND), state=state, **fields)


def leak(kind: str = "growing", name: str = "history", **fields: Any) -> wire_messages.Leak:
    """A list of graphs in a training loop, or what is given."""
    made: dict[str, Any] = {
        "holder": f"local {name!r} of train() -> list[412]",
        "chain": ["train.py:87 in train()", f"local {name!r}", "list[412]", "tensor float32[]"],
        "file": "/home/me/train.py",
        "line": 87,
        "function": "train",
        "count": 412,
        "first_step": 40,
        "last_step": 412,
        "age_steps": 411,
        "held_bytes": GIB,
        "exclusive_bytes": GIB,
        "node_bytes": 412 * 480 * 20,
        "growth_bytes_per_step": GIB / 412,
        "peak_effect_bytes": GIB // 2,
        "peak_effect": "the peak is in backward, when all of it is alive",
        "advice": f"{name}.append(loss.item())",
        "examples": ["412 x float32[] on cuda:0"],
    } | fields
    return wire_messages.Leak(kind=kind, name=name, **made)


def scan(*leaks: wire_messages.Leak, time_ns: int | None = None, step: int = 412, **fields: Any) -> wire_messages.Scan:
    made: dict[str, Any] = {"reason": "graphs outlive their step", "seconds": 0.12, "tensors": 5310} | fields
    return wire_messages.Scan(
        time_ns=time.time_ns() if time_ns is None else time_ns, step=step, leaks=list(leaks), **made
    )
