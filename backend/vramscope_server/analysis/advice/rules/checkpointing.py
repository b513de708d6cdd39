"""Advice to checkpoint repeated blocks: their activations at the peak, with and without checkpointing.

Condition: the peak's step was recorded with modules, two or more siblings (``h.0``, ``h.1`` ...) made activations that exist
at the peak, and nothing is recomputed yet. A block has parts: checkpointing a single layer saves nothing, because its input
and output remain.
Calculation, per block, on the recorded allocations: the tensors that the block's forward saved, except its output, are freed
when the block ends. They exist again from the graph node in its backward that first freed one of them. Right before that node
the block's forward runs again, up to the last tensor that it saved, with its temporaries. The output is the tensor that the
backward of the next block frees. If there is none, the block's own backward needs the output too (it ends with a ReLU) and
computes it again. The result is the step's peak before and after.
Error: docs/anatomy.md compares it with trainings that ran with checkpointing.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.advice.graph_nodes import Frees, Node, frees_of, node_that_frees
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount, percent
from vramscope_server.analysis.ownership.categories import BACKWARD
from vramscope_server.analysis.ownership.recompute import recomputed

Flags = npt.NDArray[np.bool_]

SOURCE: Final = "https://arxiv.org/abs/1604.06174"
"""Chen et al. (2016), Training Deep Nets with Sublinear Memory Cost"""
MIN_BLOCKS: Final = 2


class CheckpointBlock(NamedTuple):
    """One forward pass of a block in the peak's step. Arrays are positions of allocations."""

    name: str
    first: int
    last: int
    """Event of the forward's last allocation; ``first`` is that of the first."""
    dropped: IntArray
    """Allocations that checkpointing does not keep."""
    backward: Node
    """The graph node in its backward that first frees one of them."""
    spike_bytes: int
    """Additional bytes that its forward needs at most when it runs again."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if there are no repeated blocks, modules are unknown, or blocks are recomputed already."""
    if is_recomputing(facts):
        return None
    stems, blocks = chosen(facts, facts.peak_after)
    if not blocks:
        return None
    after = facts.peak_after(changes(facts, blocks))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    names = block_names(stems)
    at_peak = np.zeros(len(facts.trace.lives), np.bool_)
    at_peak[facts.at_peak] = True
    kept = sum(facts.bytes_of(block.dropped[at_peak[block.dropped]]) for block in blocks)
    count = len({block.name for block in blocks})
    recomputed_bytes = max(block.spike_bytes for block in blocks)
    return Advice(
        rule="checkpointing",
        sentence=(
            f"Activations of the {count} blocks {names} are {amount(kept)} of {amount(facts.peak_bytes)} at the peak "
            f"({percent(kept / facts.peak_bytes)}). With checkpointing the peak falls by {amount(saves)}. Each block "
            f"keeps its output, and needs up to {amount(recomputed_bytes)} while it is recomputed. "
            "A step then computes the forward pass of these blocks twice."
        ),
        saves_bytes=saves,
        evidence={
            "blocks": list(dict.fromkeys(block.name for block in blocks)),
            "held_bytes": kept,
            "recomputed_block_bytes": recomputed_bytes,
            "peak_after_bytes": after,
        },
        source=SOURCE,
        module=names,
    )


def is_recomputing(facts: StepFacts) -> bool:
    """Whether a backward pass of the trace recomputes activations."""
    intervals = facts.phase_intervals
    in_backward = (intervals.born >= 0) & (intervals.phase[np.maximum(intervals.born, 0)] == BACKWARD)
    return bool(recomputed(facts.trace, intervals, in_backward).any())


def chosen(facts: StepFacts, peak_after: Callable[[IntArray], int]) -> tuple[list[str], list[CheckpointBlock]]:
    """Name stems and blocks to checkpoint so that a peak falls most. Empty if it does not fall.

    peak_after   the peak with a change of allocated bytes after each event
    """
    frees = frees_of(facts)
    found = [(stem, _blocks(facts, names, frees)) for stem, names in siblings(facts.trace.modules).items()]
    # The best set of siblings first, then further sets (encoder and decoder), as long as the peak falls.
    stems: list[str] = []
    blocks: list[CheckpointBlock] = []
    after = peak_after(np.zeros(len(facts.allocated), np.int64))
    while True:
        tries = [
            (peak_after(changes(facts, [*blocks, *more])), stem, more)
            for stem, more in found
            if len(more) >= MIN_BLOCKS and not any(stem.startswith(one) or one.startswith(stem) for one in stems)
        ]
        lowest = min(tries, key=lambda row: (row[0], row[1]), default=None)
        if lowest is None or lowest[0] >= after:
            return stems, blocks
        after = lowest[0]
        stems.append(lowest[1])
        blocks += lowest[2]


def block_names(stems: list[str]) -> str:
    """Names of the blocks in a sentence, after the word "blocks"."""
    return " and ".join(f"{stem}*" if stem else "of the model" for stem in stems)


def siblings(modules: list[str]) -> dict[str, list[str]]:
    """Numbered modules by the name before their last number, with ``*`` for earlier numbers (``stages.*.layers.``).

    All levels of nested blocks are included.
    """
    found: dict[str, dict[str, None]] = {}
    for name in modules:
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part.isdecimal():
                stem = "".join("*." if one.isdecimal() else f"{one}." for one in parts[:at])
                found.setdefault(stem, {})[".".join(parts[: at + 1])] = None
    parents = {name[:at] for name in modules for at, letter in enumerate(name) if letter == "."}
    blocks = {stem: [name for name in names if name in parents] for stem, names in found.items()}
    return {stem: names for stem, names in blocks.items() if len(names) >= MIN_BLOCKS}


class _Forward(NamedTuple):
    """Allocations of one forward pass of a block that exist at its end."""

    name: str
    interval: int
    first: int
    last: int
    saved: IntArray
    backward_end: int
    """Event at which backward frees the last of them."""


def _blocks(facts: StepFacts, names: list[str], frees: Frees) -> list[CheckpointBlock]:
    """Forward passes of the blocks in the peak's step, per micro-batch, without those that saved nothing."""
    forwards = sorted((one for name in names for one in _forwards(facts, name)), key=lambda one: one.first)
    found = (
        _block(facts, one, after if after is not None and after.interval == one.interval else None, frees)
        for one, after in zip_longest(forwards, forwards[1:])
    )
    return [block for block in found if block is not None]


def _forwards(facts: StepFacts, name: str) -> list[_Forward]:
    trace, lives = facts.trace, facts.trace.lives
    inside = np.array([module == name or module.startswith(f"{name}.") for module in trace.modules])
    of_event = np.where(trace.events.module >= 0, inside[np.maximum(trace.events.module, 0)], False)
    made = np.flatnonzero(facts.in_step() & facts.allocated_in("forward"))
    made = made[of_event[lives.alloc_event[made]]]
    intervals = facts.phase_intervals.born[made]
    forwards = []
    for interval in np.unique(intervals):
        of_interval = made[intervals == interval]
        first, last = int(lives.alloc_event[of_interval[0]]), int(lives.alloc_event[of_interval[-1]])
        saved = of_interval[facts.is_of("activations")[of_interval] & (lives.free_requested_event[of_interval] > last)]
        gone = _freed_in_backward(facts, saved)
        if len(saved) and len(gone):
            forwards.append(_Forward(name, int(interval), first, last, saved, int(gone.max())))
    return forwards


def _freed_in_backward(facts: StepFacts, lives: IntArray) -> IntArray:
    events = facts.trace.events
    gone = facts.trace.lives.free_requested_event[lives]
    gone = gone[gone < len(events)]
    in_backward: IntArray = gone[events.phase[gone] == BACKWARD]
    return in_backward


def _block(facts: StepFacts, one: _Forward, following: _Forward | None, frees: Frees) -> CheckpointBlock | None:
    """The block of a forward pass; None if nothing can be dropped. ``following`` is the next block's forward pass."""
    lives = facts.trace.lives
    gone = lives.free_requested_event[one.saved]
    outputs = np.zeros(len(one.saved), np.bool_)
    if following is not None:
        # The backward of the next block frees its inputs. They are this block's outputs.
        node_end = _end_of_node(facts, following.backward_end)
        outputs = gone < node_end
    own = not outputs.any()
    if own:  # its own backward needs the output too, which must be recomputed with the rest
        outputs[np.flatnonzero(gone == gone.min())[-1]] = True
    dropped = one.saved[~outputs]
    ends = _freed_in_backward(facts, dropped)
    if not len(ends):
        return None
    up_to = one.last if own else int(lives.alloc_event[dropped[-1]])
    spike_bytes = _spike(facts, one.first, up_to)
    node = node_that_frees(frees, int(ends.min()))
    return CheckpointBlock(one.name, one.first, one.last, dropped, node, spike_bytes)


def _end_of_node(facts: StepFacts, event: int) -> int:
    """Event of the next allocation: blocks freed before it belong to the same graph node."""
    made = facts.trace.lives.alloc_event
    at = int(np.searchsorted(made, event, side="right"))
    return int(made[at]) if at < len(made) else len(facts.trace.events)


def _spike(facts: StepFacts, first: int, last: int) -> int:
    """Highest increase of allocated bytes between two events."""
    curve = facts.allocated[first : last + 2]
    return int(curve.max() - curve[0])


def changes(facts: StepFacts, blocks: list[CheckpointBlock], of: Flags | None = None) -> IntArray:
    """Change of allocated bytes after each event with these blocks checkpointed; ``of`` limits it to some allocations."""
    lives, count = facts.trace.lives, len(facts.trace.events)
    gone = np.zeros(len(lives), np.bool_)
    begin, end = np.zeros(len(lives), np.int64), np.zeros(len(lives), np.int64)
    sooner = np.zeros(len(lives), np.bool_)
    results = np.zeros(len(lives), np.int64)
    for block in blocks:
        freed = lives.free_requested_event[block.dropped]
        gone[block.dropped] = True
        begin[block.dropped] = block.last + 1
        end[block.dropped] = np.minimum(block.backward.begin, freed)
        # With a checkpoint the node itself frees them after its results, and its bias's gradient is summed later.
        of_node = block.dropped[freed == freed.min()]
        sooner[of_node], results[of_node] = True, block.backward.end
    if of is not None:
        gone &= of
        sooner &= of
    rows = np.flatnonzero(gone)
    change = facts.without(gone, begin[rows], end[rows])
    rows = np.flatnonzero(sooner)
    change += facts.without(sooner, results[rows], lives.free_requested_event[rows])
    for block in blocks:
        # The block is recomputed right before its backward, when none of its tensors exist.
        at = min(block.backward.begin, count - 1)
        change[at] += block.spike_bytes if of is None else _made(facts, block, of)
    return change


def _made(facts: StepFacts, block: CheckpointBlock, of: Flags) -> int:
    """Bytes of these allocations that the block's forward made."""
    made = facts.trace.lives.alloc_event
    return facts.bytes_of(of & (made >= block.first) & (made <= block.last))
