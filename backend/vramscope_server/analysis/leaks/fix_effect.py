"""What a leak's fix brings, by replay: the recorded step once more, with each release where the fix would put it.

Allocated bytes follow from the recorded lives, exactly. Reserved bytes come of the simulator (``fixed``), and have a band.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vramscope.protocol.series import PHASES, phase_place
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.leaks.leaked_allocations import CannotTell, held_by
from vramscope_server.analysis.leaks.release_points import releases
from vramscope_server.analysis.leaks.reserved_effect import reserved_falls
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.ownership.amounts import allocated_after
from vramscope_server.analysis.trace.trace import Trace, reserved_after


@dataclass(frozen=True)
class LeakEffect:
    """One step as it was, and as it would be after the fix."""

    step: int
    """Number of the step, from 1."""
    begin_event: int
    """Number of events before its beginning."""
    end_event: int
    allocations: int
    """Number of allocations in the recording that the fix frees earlier."""
    held_bytes: int
    """Bytes that the fix would free, at the step's beginning."""
    peak_allocated_bytes: int
    peak_allocated_after_bytes: int
    peak_reserved_bytes: int
    peak_reserved_after_bytes: int
    peak_reserved_after_band: tuple[int, int]
    phase: str | None
    """Phase of the peak."""
    phase_after: str | None
    """Phase of the peak after the fix."""
    alive_bytes: int
    """Bytes at the peak that the fix would free."""
    words: str
    """Effect on the peak in words, with the reason."""

    @property
    def saved_bytes(self) -> int:
        return self.peak_allocated_bytes - self.peak_allocated_after_bytes


def leak_effect(trace: Trace, kind: str, name: str, file: str | None, line: int | None) -> LeakEffect:
    """The effect of the fix of one leak on one step that was recorded. Raises held.CannotTell, with the reason."""
    if {trace.backend, trace.parsed_settings[0].backend} != {"native"}:
        raise CannotTell("only PyTorch's native allocator can be replayed")
    held = held_by(trace, kind, name, file, line)
    lives, at = releases(trace, held)
    allocated = allocated_after(trace)
    less = _let_go(trace, lives, at) + held.counted_bytes
    span = slice(held.begin, held.end + 1)
    before, after = allocated[span], (allocated - less)[span]
    highest, highest_after = (int(np.argmax(curve)) for curve in (before, after))
    reserved = int(reserved_after(trace)[span].max())
    falls = reserved_falls(trace, lives, at, held.end)
    phases = [_phase(trace, held.begin + place) for place in (highest, highest_after)]
    alive = int(less[span][highest])
    effect = LeakEffect(
        step=int(trace.events.step[held.begin]),
        begin_event=held.begin,
        end_event=held.end,
        allocations=len(lives),
        held_bytes=int(trace.lives.size_bytes[held.before].sum()) + held.counted_bytes,
        peak_allocated_bytes=int(before.max()),
        peak_allocated_after_bytes=int(after.max()),
        peak_reserved_bytes=reserved,
        peak_reserved_after_bytes=reserved - falls[0],
        peak_reserved_after_band=(reserved - max(falls), reserved - min(falls)),
        phase=phases[0],
        phase_after=phases[1],
        alive_bytes=alive,
        words="",
    )
    if kind == "no_grad-missing" and not effect.saved_bytes:
        # Each batch drops its graph. A scan knows those of the batch at which it ran; the peak is in another one.
        raise CannotTell("no scan saw the graph that was alive at the peak, so the effect of the fix is unknown")
    at_peak = held.begin + highest
    alive_then = trace.lives.free_requested_event[held.before] >= at_peak
    needed = any(
        trace.lives.alloc_event[life] < at_peak <= until
        for life, until in held.needed_until.items()
        if life in held.after
    )
    replaced = bool(len(held.before)) and not alive_then.any()
    return replace(effect, words=_words(effect, replaced=replaced, needed=needed))


def _let_go(trace: Trace, lives: IntArray, at: IntArray) -> IntArray:
    """Bytes that are gone after each event, and were not in the recorded run; element 0 is before the first."""
    of, count = trace.lives, len(trace.events)
    change = np.zeros(count + 2, np.int64)
    np.add.at(change, np.maximum(at, of.alloc_event[lives]) + 1, of.size_bytes[lives])
    np.subtract.at(change, of.free_requested_event[lives] + 1, of.size_bytes[lives])
    return np.cumsum(change[: count + 1])


def _phase(trace: Trace, events: int) -> str | None:
    """The phase after this many events."""
    code = int(trace.events.phase[max(events - 1, 0)])
    return PHASES[code] if code >= 0 else None


# ---- words ----


def _words(effect: LeakEffect, *, replaced: bool, needed: bool) -> str:
    """``replaced``: at the peak all that the step before had left was gone; ``needed``: what was held then is for the backward."""
    where = "" if effect.phase is None else f", {phase_place(effect.phase)},"
    saved, alive = effect.saved_bytes, effect.alive_bytes
    head = f"In the recorded step {effect.step} it retains {amount(effect.held_bytes)}. With the fix the step's peak{where}"
    if not alive and needed and effect.phase == "backward":
        # Which part of the backward pass needs it is not recorded: PyTorch 2.15 has its peak where a product takes a workspace.
        return f"{head} falls by 0 or more: the backward pass may need this memory then."
    if not alive and replaced:
        return f"{head} does not fall: the new result has replaced the old one by then."
    if not alive:
        return f"{head} does not fall: none of the memory that the fix frees exists then."
    if saved == alive:
        return f"{head} falls by {amount(saved)}."
    then = amount(effect.peak_allocated_after_bytes)
    if effect.phase_after is not None and effect.phase_after != effect.phase:
        then += f", {phase_place(effect.phase_after)}"
    fall = f"falls by {amount(saved)}" if saved else "does not fall"
    return f"{head} {fall}: the fix frees {amount(alive)} there, and then the highest is {then}."
