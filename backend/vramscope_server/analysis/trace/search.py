"""Events of a trace by what they are: action, size, time, address, pool, stream, and words of their stacks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_OOM: Final = ACTIONS.index("oom")


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """What is looked for; None: whatever it is."""

    first: int = 0
    end: int | None = None
    """events from ``first`` up to, and not including, ``end``"""
    actions: tuple[str, ...] = ()
    """none: all"""
    text: str = ""
    """in a file or function of the stack, its metadata or compiled region, whatever the case; or ``file:line``"""
    least_bytes: int | None = None
    most_bytes: int | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    address: int | None = None
    """inside the block or segment of the event"""
    stream: int | None = None
    pool: int | None = None
    """position in trace.pools"""


def matching_events(trace: Trace, wanted: EventFilter) -> Whole:
    """Positions of the events that are all of what is wanted, rising. Some 10 ns an event for each thing that is asked."""
    events = trace.events
    low = min(max(wanted.first, 0), len(events))
    end = len(events) if wanted.end is None else max(min(wanted.end, len(events)), low)
    inside = slice(low, end)
    keep: Flags | None = None

    def only(flags: Flags) -> None:
        nonlocal keep
        keep = flags if keep is None else keep & flags

    if wanted.actions:
        only(np.isin(events.action[inside], [ACTIONS.index(word) for word in wanted.actions]))
    if wanted.least_bytes is not None:
        only(events.size_bytes[inside] >= wanted.least_bytes)
    if wanted.most_bytes is not None:
        only(events.size_bytes[inside] <= wanted.most_bytes)
    if wanted.from_ns is not None:
        only(events.time_ns[inside] >= wanted.from_ns)
    if wanted.to_ns is not None:
        only((events.time_ns[inside] <= wanted.to_ns) & (events.time_ns[inside] >= 0))
    if wanted.address is not None:  # an out-of-memory error has no address: free bytes stand there
        offset = wanted.address - events.address[inside]
        spans = np.maximum(events.size_bytes[inside], 1)
        only((offset >= 0) & (offset < spans) & (events.action[inside] != _OOM))
    if wanted.stream is not None:
        only(events.stream[inside] == wanted.stream)
    if wanted.pool is not None:
        only(events.pool[inside] == wanted.pool)
    if wanted.text.strip():
        of_stack = np.append(stacks_with(trace, wanted.text.strip()), False)  # -1, no stack: the last
        hit = of_stack[events.stack[inside]]
        of_word = np.append(_words_with(trace.words, wanted.text.strip()), False) if trace.labels else hit[:0]
        for name in trace.labels.keys() & {"user_metadata", "compile_context"}:
            hit |= of_word[trace.labels[name][inside]]
        only(hit)
    return np.arange(low, end) if keep is None else low + np.flatnonzero(keep)


def stacks_with(trace: Trace, text: str) -> Flags:
    """Which stacks have a frame that tells a text."""
    frames, stacks = trace.frames, trace.stacks
    place = re.fullmatch(r"(.+):(\d{1,9})", text)
    told = _words_with(trace.words, text)
    hit = told[frames["file"]] | told[frames["function"]] if len(told) else np.zeros(len(frames["file"]), np.bool_)
    if place is not None and len(told):
        hit |= _words_with(trace.words, place[1])[frames["file"]] & (frames["line"] == int(place[2]))
    before = np.concatenate([[0], np.cumsum(hit[stacks.flat], dtype=np.int64)])
    has: Flags = before[stacks.offsets[1:]] > before[stacks.offsets[:-1]]
    return has


def _words_with(words: Any, text: str) -> Flags:
    sought = text.casefold()
    return np.fromiter((sought in word.casefold() for word in words), np.bool_, len(words))
