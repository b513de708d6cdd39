"""Recorded windows without a GPU: the allocator's plain rules, and a training that asks it for memory.

Rounding to 512 bytes, a small and a large pool, best fit, splitting, merging and emptying the cache on request are
PyTorch's own (checked: the server's exact replay of such a window finds no difference). One stream, default settings.
"""

from __future__ import annotations

import bisect
import random
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from vramscope.protocol.series import PHASES
from vramscope.protocol.window import ACTIONS, BLOCKS, EVENTS, FRAMES, SEGMENTS, STATES, Holding, Layout, Window

MIB = 1 << 20
GIB = 1 << 30
FUNCTIONS = [
    ("/home/me/train.py", 87, "train"),
    ("/home/me/model.py", 31, "forward"),
    ("torch/nn/modules/module.py", 1751, "_call_impl"),
    ("torch/nn/modules/linear.py", 125, "forward"),
    ("torch/nn/functional.py", 2120, "softmax"),
]
STACKS = [[3, 2, 1, 0], [4, 2, 1, 0], [0]]


@dataclass(eq=False)
class Block:
    """A piece of a segment; ``requested`` of a free one is 0."""

    address: int
    size: int
    segment: Segment
    requested: int = 0
    stack: int = -1
    before: Block | None = None
    after: Block | None = None


@dataclass(eq=False)
class Segment:
    """What one cudaMalloc gave."""

    address: int
    size: int
    large: bool
    number: int
    first: Block = field(init=False)

    def __post_init__(self) -> None:
        self.first = Block(self.address, self.size, self)


class Allocator:
    """Answers requests and writes down what it did."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.free_blocks: dict[bool, list[tuple[int, int, int, int, Block]]] = {False: [], True: []}
        self.events: dict[str, list[int]] = {name: [] for name in EVENTS}
        self.step = 1
        self.phase = 0
        self.made = 0
        self.address = 0x7F00_0000_0000

    def alloc(self, requested: int, stack: int = 0) -> Block:
        size = max(512, -(-requested // 512) * 512)
        large = size > MIB
        pool = self.free_blocks[large]
        at = bisect.bisect_left(pool, (size,))
        if at < len(pool):
            block = pool.pop(at)[-1]
        else:
            got = 2 * MIB if not large else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            segment = Segment(self.address, got, large, self.made)
            self.made += 1
            self.address += got + 2 * MIB
            self.segments.append(segment)
            self.note("segment_alloc", segment.address, got, stack)
            block = segment.first
        rest = block.size - size
        if rest > MIB if large else rest >= 512:
            tail = Block(block.address + size, rest, block.segment, before=block, after=block.after)
            if block.after is not None:
                block.after.before = tail
            block.size, block.after = size, tail
            self._shelve(tail)
        block.requested, block.stack = requested, stack
        self.note("alloc", block.address, requested, stack)
        return block

    def free(self, block: Block) -> None:
        for action in ("free_requested", "free_completed"):
            self.note(action, block.address, block.requested, -1)
        block.requested, block.stack = 0, -1
        before, after = block.before, block.after
        if before is not None and not before.requested:
            self._unshelve(before)
            before.size += block.size
            before.after = after
            if after is not None:
                after.before = before
            block = before
        if after is not None and not after.requested:
            self._unshelve(after)
            block.size += after.size
            block.after = after.after
            if after.after is not None:
                after.after.before = block
        self._shelve(block)

    def empty_cache(self) -> None:
        for large in (True, False):
            for *_, block in list(self.free_blocks[large]):
                if block.before is None and block.after is None:
                    self._unshelve(block)
                    self.segments.remove(block.segment)
                    self.note("segment_free", block.address, block.size, -1)

    def note(self, action: str, address: int, size: int, stack: int) -> None:
        made = len(self.events["action"])
        row = {"action": ACTIONS.index(action), "address": address, "size_bytes": size, "stack": stack, "stream": 0}
        row |= {"time_ns": 1_780_000_000_000_000_000 + made * 1000, "pool": 0, "step": self.step, "phase": self.phase}
        for name, values in self.events.items():
            values.append(row.get(name, -1))

    def layout(self) -> Layout:
        segments: dict[str, list[int]] = {name: [] for name in SEGMENTS}
        blocks: dict[str, list[int]] = {name: [] for name in BLOCKS}
        for number, segment in enumerate(sorted(self.segments, key=lambda one: one.address)):
            row = {"address": segment.address, "size_bytes": segment.size, "stream": 0, "large": int(segment.large)}
            for name, values in segments.items():
                values.append(row.get(name, 0))
            block: Block | None = segment.first
            while block is not None:
                state = STATES.index("active_allocated" if block.requested else "inactive")
                row = {"segment": number, "address": block.address, "size_bytes": block.size, "state": state}
                row |= {"requested_bytes": block.requested, "stack": block.stack}
                for name, values in blocks.items():
                    values.append(row[name])
                block = block.after
        return Layout(segments=packed(segments), blocks=packed(blocks))

    def _shelve(self, block: Block) -> None:
        bisect.insort(self.free_blocks[block.segment.large], self._key(block))

    def _unshelve(self, block: Block) -> None:
        pool = self.free_blocks[block.segment.large]
        del pool[bisect.bisect_left(pool, self._key(block)[:4])]

    @staticmethod
    def _key(block: Block) -> tuple[int, int, int, int, Block]:
        return (block.size, block.segment.number, block.address, id(block), block)


def packed(columns: dict[str, Iterable[int]] | dict[str, list[int]]) -> dict[str, bytes]:
    """Lists as the columns of a window."""
    return {name: array("q", values).tobytes() for name, values in columns.items()}


def recorded(start: Layout | None, allocator: Allocator, **fields: Any) -> Window:
    """What the allocator did since ``start``, as a window."""
    words = [name for name, _, _ in FUNCTIONS] + [function for _, _, function in FUNCTIONS]
    frames = {"file": range(len(FUNCTIONS)), "line": [line for _, line, _ in FUNCTIONS]}
    facts: dict[str, Any] = {
        "device": 0, "device_name": "NVIDIA H100 80GB HBM3", "device_total_bytes": 80 * GIB, "device_free_bytes": 79 * GIB,
        "limit_bytes": None, "torch": "2.13.0+cu130", "cuda": "13.0", "backend": "native", "settings": "",
        "settings_in_force": {
            "max_split_size_mb": None, "expandable_segments": False, "garbage_collection_threshold": 0.0,
            "large_segment_size_mb": 20, "max_non_split_rounding_mb": 20,
        },
        "reason": "the first steps", "first_step": 1, "last_step": allocator.step - 1, "pools": [(0, 0)], "words": words,
        "frames": packed({
            **frames, "function": [len(FUNCTIONS) + i for i in range(len(FUNCTIONS))],
        }), "stacks": STACKS,
    }  # fmt: skip
    assert frames.keys() | {"function"} == FRAMES.keys()
    return Window(start=start, end=allocator.layout(), events=packed(allocator.events), **(facts | fields))


def training(
    steps: int = 3, layers: int = 12, *, seed: int = 0, width: int = 768, small: int = 0, **fields: Any
) -> Window:
    """A training with sequences of varying lengths: about 12 events a layer and step. ``small``: tensors a layer that stay."""
    choose = random.Random(seed)
    allocator = Allocator()
    weights = [allocator.alloc(12 * width * width * 4, stack=2) for _ in range(layers)]
    for number in range(layers * small):
        allocator.alloc(512 * (1 + number % 7), stack=1)
    states: list[Block] = []
    allocator.events = {name: [] for name in EVENTS}
    start = allocator.layout()
    for _ in range(steps):
        length = choose.randrange(128, 1025, 32)
        allocator.phase = PHASES.index("forward")
        kept: list[Block] = []
        for layer in range(layers):
            kept.append(allocator.alloc(8 * length * width * 4, stack=0))
            scratch = allocator.alloc(8 * 12 * length * length * 2 + 4 * (layer % 3), stack=1)
            kept.append(allocator.alloc(8 * length * 4, stack=1))
            allocator.free(scratch)
        allocator.phase = PHASES.index("backward")
        gradients = []
        for layer in reversed(range(layers)):
            gradients.append(allocator.alloc(weights[layer].requested, stack=2))
            allocator.free(kept.pop())
            allocator.free(kept.pop())
        allocator.phase = PHASES.index("optimizer")
        if not states:
            states = [allocator.alloc(weight.requested, stack=2) for weight in weights for _ in range(2)]
        for gradient in gradients:
            allocator.free(gradient)
        allocator.step += 1
    return recorded(start, allocator, **fields)


def leaking(
    kind: str = "overlap",
    name: str = "output",
    *,
    backward_mib: int = 4,
    needed: bool = False,
    line: int = 87,
    **fields: Any,
) -> Window:
    """Two steps of a training whose result, 16 MiB, lives until the next is made; and a scan before each forward.

    64 MiB of weights, 32 of activations, and ``backward_mib`` in backward, when the old result is gone.
    """
    allocator = Allocator()
    allocator.alloc(64 * MIB, stack=2)
    result = allocator.alloc(16 * MIB, stack=2)
    allocator.events = {column: [] for column in EVENTS}
    start, scans = allocator.layout(), []
    held: dict[str, list[int]] = {"event": [], "address": [], "holding": []}

    def note(block: Block, holding: int) -> None:
        for column, value in (
            ("event", len(allocator.events["action"])),
            ("address", block.address),
            ("holding", holding),
        ):
            held[column].append(value)

    for _ in range(2):
        scans.append(len(allocator.events["action"]))
        note(result, 0)
        allocator.phase = PHASES.index("forward")
        activations, newer = allocator.alloc(32 * MIB), allocator.alloc(16 * MIB)
        allocator.free(result)
        result = newer
        allocator.phase = PHASES.index("backward")
        if needed:
            note(result, -1)
        gradients = allocator.alloc(backward_mib * MIB)
        allocator.free(activations)
        allocator.phase = PHASES.index("optimizer")
        allocator.free(gradients)
        allocator.step += 1
        allocator.phase = PHASES.index("data")
        allocator.free(allocator.alloc(MIB))
    holding = Holding(kind=kind, name=name, file="/home/me/train.py", line=line, counted_bytes=[0, 0])
    shown = {"held": packed(held), "holdings": [holding], "scans": scans, "reason": "a leak was found"}
    return recorded(start, allocator, **(shown | fields))
