"""Checkpointing the repeated blocks: what they hold at the peak, and what they would hold then.

Condition: the peak's step was recorded with modules, and two or more siblings (``h.0``, ``h.1`` ...) made activations that are
held at the peak; nothing is recomputed yet. A block has parts: of a single layer (a linear one among the children of a Sequential)
checkpointing keeps input and output, and that is all that there was.
Arithmetic, block by block, on the recorded lives: what the block's forward saved, all but its output, goes when the block ends,
and is there again from the moment at which its backward first let something of it go; right before that the block's forward runs
once more, up to the last thing that it saved, with its temporaries. Its output is what the backward of the block behind it lets
go; where there is no such thing its own backward needs the output, too (it ends with a ReLU), and makes it again. The step's
peak is taken before and after.
Error: against trainings that were run with checkpointing, in docs/anatomy.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.ownership.categories import BACKWARD
from vramscope_server.analysis.ownership.recompute import recomputed
from vramscope_server.analysis.units import amount, percent

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

SOURCE: Final = "https://arxiv.org/abs/1604.06174"
"""Chen et al. (2016), Training Deep Nets with Sublinear Memory Cost"""
LEAST_BLOCKS: Final = 2


class Block(NamedTuple):
    """One block's forward in the peak's step, by lives of the trace."""

    name: str
    first: int
    last: int
    """events of its forward's first and last allocation"""
    dropped: Whole
    """what checkpointing would not keep"""
    backward: int
    """event at which its backward first lets something of it go"""
    spike_bytes: int
    """that its forward needs at most while it runs again, beyond what was there"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where there are no repeated blocks, modules were not recorded, or blocks are recomputed already."""
    if is_recomputing(facts):
        return None
    stems, blocks = chosen(facts, facts.peak_after)
    if not blocks:
        return None
    after = facts.peak_after(changes(facts, blocks))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    names = named(stems)
    at_peak = np.zeros(len(facts.trace.lives), np.bool_)
    at_peak[facts.at_peak] = True
    held = sum(facts.bytes_of(block.dropped[at_peak[block.dropped]]) for block in blocks)
    count = len({block.name for block in blocks})
    again = max(block.spike_bytes for block in blocks)
    return Advice(
        rule="checkpointing",
        sentence=(
            f"Activations of the {count} blocks {names} are {amount(held)} of {amount(facts.peak_bytes)} at the peak "
            f"({percent(held / facts.peak_bytes)}). Checkpointing them keeps each block's output, and {amount(again)} for the one "
            f"that is computed again: the peak falls by {amount(saves)}, for one more forward of these blocks in each backward."
        ),
        saves_bytes=saves,
        evidence={
            "blocks": list(dict.fromkeys(block.name for block in blocks)),
            "held_bytes": held,
            "recomputed_block_bytes": again,
            "peak_after_bytes": after,
        },
        source=SOURCE,
        module=names,
    )


def is_recomputing(facts: StepFacts) -> bool:
    """A backward of the trace makes again what a forward had made."""
    intervals = facts.phase_intervals
    in_backward = (intervals.born >= 0) & (intervals.phase[np.maximum(intervals.born, 0)] == BACKWARD)
    return bool(recomputed(facts.trace, intervals, in_backward).any())


def chosen(facts: StepFacts, peak_after: Callable[[Whole], int]) -> tuple[list[str], list[Block]]:
    """What to checkpoint so that a peak falls most: what stands before the blocks' numbers, and the blocks; none where it rises.

    peak_after   the peak in question, if allocated bytes changed by so much after each event
    """
    found = [(stem, _blocks(facts, names)) for stem, names in siblings(facts.trace.modules).items()]
    # The best set of siblings first; then others beside it (an encoder's and a decoder's), as long as the peak falls.
    stems: list[str] = []
    blocks: list[Block] = []
    after = peak_after(np.zeros(len(facts.allocated), np.int64))
    while True:
        tries = [
            (peak_after(changes(facts, [*blocks, *more])), stem, more)
            for stem, more in found
            if len(more) >= LEAST_BLOCKS and not any(stem.startswith(one) or one.startswith(stem) for one in stems)
        ]
        lowest = min(tries, key=lambda row: (row[0], row[1]), default=None)
        if lowest is None or lowest[0] >= after:
            return stems, blocks
        after = lowest[0]
        stems.append(lowest[1])
        blocks += lowest[2]


def named(stems: list[str]) -> str:
    """What is checkpointed, in words behind "blocks"."""
    return " and ".join(f"{stem}*" if stem else "of the model itself" for stem in stems)


def siblings(modules: list[str]) -> dict[str, list[str]]:
    """Modules that are numbered alike, by what stands before the last number, earlier ones left open (``stages.*.layers.``); of
    nested ones all levels."""
    found: dict[str, dict[str, None]] = {}
    for name in modules:
        parts = name.split(".")
        for at, part in enumerate(parts):
            if part.isdecimal():
                stem = "".join("*." if one.isdecimal() else f"{one}." for one in parts[:at])
                found.setdefault(stem, {})[".".join(parts[: at + 1])] = None
    around = {name[:at] for name in modules for at, letter in enumerate(name) if letter == "."}
    blocks = {stem: [name for name in names if name in around] for stem, names in found.items()}
    return {stem: names for stem, names in blocks.items() if len(names) >= LEAST_BLOCKS}


class _Forward(NamedTuple):
    """What one forward of a block made, and which of it was still there when it was over."""

    name: str
    interval: int
    first: int
    last: int
    saved: Whole
    backward_end: int
    """event at which the last of it is let go"""


def _blocks(facts: StepFacts, names: list[str]) -> list[Block]:
    """What each block did in the peak's step, once a micro-batch; forwards that saved nothing are left out."""
    forwards = sorted((one for name in names for one in _forwards(facts, name)), key=lambda one: one.first)
    found = (
        _block(facts, one, after if after is not None and after.interval == one.interval else None)
        for one, after in zip_longest(forwards, forwards[1:])
    )
    return [block for block in found if block is not None]


def _forwards(facts: StepFacts, name: str) -> list[_Forward]:
    trace, lives = facts.trace, facts.trace.lives
    inside = np.array([module == name or module.startswith(f"{name}.") for module in trace.modules])
    of_event = np.where(trace.events.module >= 0, inside[np.maximum(trace.events.module, 0)], False)
    made = np.flatnonzero(facts.in_step() & facts.born_in("forward"))
    made = made[of_event[lives.alloc_event[made]]]
    intervals = facts.phase_intervals.born[made]
    forwards = []
    for interval in np.unique(intervals):
        of_interval = made[intervals == interval]
        first, last = int(lives.alloc_event[of_interval[0]]), int(lives.alloc_event[of_interval[-1]])
        saved = of_interval[facts.is_of("activations")[of_interval] & (lives.requested_event[of_interval] > last)]
        gone = _gone_in_backward(facts, saved)
        if len(saved) and len(gone):
            forwards.append(_Forward(name, int(interval), first, last, saved, int(gone.max())))
    return forwards


def _gone_in_backward(facts: StepFacts, lives: Whole) -> Whole:
    events = facts.trace.events
    gone = facts.trace.lives.requested_event[lives]
    gone = gone[gone < len(events)]
    in_backward: Whole = gone[events.phase[gone] == BACKWARD]
    return in_backward


def _block(facts: StepFacts, one: _Forward, behind: _Forward | None) -> Block | None:
    """``behind``: the forward of the block that ran after it. None where nothing could be dropped."""
    lives = facts.trace.lives
    gone = lives.requested_event[one.saved]
    outputs = np.zeros(len(one.saved), np.bool_)
    if behind is not None:
        # What the backward of the block behind it lets go, that block used: it is this one's output.
        node_end = _end_of_node(facts, behind.backward_end)
        outputs = gone < node_end
    own = not outputs.any()
    if own:  # its own backward needs it, too: then it has to be made again with the rest
        outputs[np.flatnonzero(gone == gone.min())[-1]] = True
    dropped = one.saved[~outputs]
    ends = _gone_in_backward(facts, dropped)
    if not len(ends):
        return None
    up_to = one.last if own else int(lives.alloc_event[dropped[-1]])
    return Block(one.name, one.first, one.last, dropped, int(ends.min()), _spike(facts, one.first, up_to))


def _end_of_node(facts: StepFacts, event: int) -> int:
    """The next allocation after an event: what is let go before it goes together with it."""
    made = facts.trace.lives.alloc_event
    at = int(np.searchsorted(made, event, side="right"))
    return int(made[at]) if at < len(made) else len(facts.trace.events)


def _spike(facts: StepFacts, first: int, last: int) -> int:
    """The most that was allocated between two events, beyond what was there before."""
    course = facts.allocated[first : last + 2]
    return int(course.max() - course[0])


def changes(facts: StepFacts, blocks: list[Block], of: Flags | None = None) -> Whole:
    """What allocated bytes change by, after each event, if these blocks were checkpointed; ``of``: the part of these lives."""
    lives, count = facts.trace.lives, len(facts.trace.events)
    gone = np.zeros(len(lives), np.bool_)
    begin, end = np.zeros(len(lives), np.int64), np.zeros(len(lives), np.int64)
    for block in blocks:
        gone[block.dropped] = True
        begin[block.dropped] = block.last + 1
        end[block.dropped] = np.minimum(block.backward, lives.requested_event[block.dropped])
    if of is not None:
        gone &= of
    rows = np.flatnonzero(gone)
    change = facts.without(gone, begin[rows], end[rows])
    for block in blocks:
        # Right before its backward the block is computed again, while nothing of it is there.
        at = min(block.backward, count - 1)
        change[at] += block.spike_bytes if of is None else _made(facts, block, of)
    return change


def _made(facts: StepFacts, block: Block, of: Flags) -> int:
    """Bytes of these lives that the block's forward made."""
    made = facts.trace.lives.alloc_event
    return facts.bytes_of(of & (made >= block.first) & (made <= block.last))
