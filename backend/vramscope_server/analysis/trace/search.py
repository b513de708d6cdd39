"""Searches events of a trace by action, size, time, address, pool, stream, and text in their stacks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.array_types import IntArray

if TYPE_CHECKING:
    from vramscope_server.analysis.trace.trace import Trace

Flags = npt.NDArray[np.bool_]
_OOM: Final = ACTIONS.index("oom")


@dataclass(frozen=True, kw_only=True)
class EventFilter:
    """Conditions on events; None for any."""

    first: int = 0
    end: int | None = None
    """End of the range of events, exclusive."""
    actions: tuple[str, ...] = ()
    """Actions; empty for all."""
    text: str = ""
    """Text in a file or function of the stack, in metadata or a compiled region, ignoring case; or ``file:line``."""
    min_bytes: int | None = None
    max_bytes: int | None = None
    from_ns: int | None = None
    to_ns: int | None = None
    address: int | None = None
    """Address inside the block or segment of the event."""
    stream: int | None = None
    pool: int | None = None
    """Position in trace.pools."""


def matching_events(trace: Trace, conditions: EventFilter) -> IntArray:
    """Positions of the events that meet all conditions, sorted. About 10 ns per event and condition."""
    events = trace.events
    low = min(max(conditions.first, 0), len(events))
    end = len(events) if conditions.end is None else max(min(conditions.end, len(events)), low)
    inside = slice(low, end)
    keep: Flags | None = None

    def only(flags: Flags) -> None:
        nonlocal keep
        keep = flags if keep is None else keep & flags

    if conditions.actions:
        only(np.isin(events.action[inside], [ACTIONS.index(word) for word in conditions.actions]))
    if conditions.min_bytes is not None:
        only(events.size_bytes[inside] >= conditions.min_bytes)
    if conditions.max_bytes is not None:
        only(events.size_bytes[inside] <= conditions.max_bytes)
    if conditions.from_ns is not None:
        only(events.time_ns[inside] >= conditions.from_ns)
    if conditions.to_ns is not None:
        only((events.time_ns[inside] <= conditions.to_ns) & (events.time_ns[inside] >= 0))
    if conditions.address is not None:  # for an out-of-memory error the column has free bytes instead of an address
        offset = conditions.address - events.address[inside]
        spans = np.maximum(events.size_bytes[inside], 1)
        only((offset >= 0) & (offset < spans) & (events.action[inside] != _OOM))
    if conditions.stream is not None:
        only(events.stream[inside] == conditions.stream)
    if conditions.pool is not None:
        only(events.pool[inside] == conditions.pool)
    if conditions.text.strip():
        of_stack = np.append(
            stacks_with(trace, conditions.text.strip()), False
        )  # -1 (no stack) selects the last element
        hit = of_stack[events.stack[inside]]
        of_word = np.append(_words_with(trace.words, conditions.text.strip()), False) if trace.labels else hit[:0]
        for name in trace.labels.keys() & {"user_metadata", "compile_context"}:
            hit |= of_word[trace.labels[name][inside]]
        only(hit)
    return np.arange(low, end) if keep is None else low + np.flatnonzero(keep)


def stacks_with(trace: Trace, text: str) -> Flags:
    """Whether each stack has a frame with this text."""
    frames, stacks = trace.frames, trace.stacks
    file_line = re.fullmatch(r"(.+):(\d{1,9})", text)
    matches = _words_with(trace.words, text)
    hit = (
        matches[frames["file"]] | matches[frames["function"]]
        if len(matches)
        else np.zeros(len(frames["file"]), np.bool_)
    )
    if file_line is not None and len(matches):
        hit |= _words_with(trace.words, file_line[1])[frames["file"]] & (frames["line"] == int(file_line[2]))
    before = np.concatenate([[0], np.cumsum(hit[stacks.flat], dtype=np.int64)])
    has: Flags = before[stacks.offsets[1:]] > before[stacks.offsets[:-1]]
    return has


def _words_with(words: Any, text: str) -> Flags:
    sought = text.casefold()
    return np.fromiter((sought in word.casefold() for word in words), np.bool_, len(words))
