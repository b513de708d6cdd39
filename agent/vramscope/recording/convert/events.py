"""Converts a snapshot's trace of one device to the columns of a window's events, in slices so that the training runs in
between."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from operator import itemgetter
from typing import Final

from vramscope.memory.pools import Pools
from vramscope.memory.pytorch_snapshot import SnapshotEvent
from vramscope.memory.stack_table import Stacks
from vramscope.protocol.series import UNKNOWN
from vramscope.protocol.window import ACTIONS
from vramscope.recording.raw_window import Mark

SLICE_EVENTS: Final = 2000
"""Events in one slice: about 2 ms, then the interpreter's lock is released."""

_CODES: Final = {name: code for code, name in enumerate(ACTIONS)}
ALLOCATED: Final = ACTIONS.index("alloc")
FREED: Final = ACTIONS.index("free_completed")
OOM: Final = ACTIONS.index("oom")
_FREES: Final = bytes(code == FREED for code in range(256))
_action, _address, _size, _stream, _time_us, _pool = map(
    itemgetter, ("action", "addr", "size", "stream", "time_us", "pool_id")
)


class WindowEvents:
    """Events of one device. ``columns`` are complete after :meth:`read`."""

    def __init__(self, pools: Pools, stacks: Stacks, tag: str, marks: Sequence[Mark]) -> None:
        self._pools = pools
        self._stacks = stacks
        self._tag = tag
        self._marks = marks
        self._parts: dict[str, array[int]] = {
            name: array("q") for name in ("action", "address", "size_bytes", "stream", "pool", "stack", "module")
        }
        self._times_us: list[int] = []
        self._tags: list[str] = []
        self._modules: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        """Number of events by action."""
        self.unknown: Counter[str] = Counter()
        """Actions that are not in window.ACTIONS, and are left out."""
        self.freed: set[int] = set()
        """Addresses of blocks that were freed."""

    def read(self, entries: list[SnapshotEvent], pause: Callable[[], None]) -> None:
        """Read the trace's entries, oldest first. The list is emptied on the way, so that its memory is freed in slices
        too."""
        entries.reverse()
        while entries:
            piece = entries[-SLICE_EVENTS:]
            del entries[-SLICE_EVENTS:]
            piece.reverse()
            self._add(piece)
            del piece
            pause()

    def _add(self, entries: list[SnapshotEvent]) -> None:
        # Whole columns at a time, by functions written in C: a third of the time of a loop. No tuple is made, which
        # would start the garbage collector.
        actions = list(map(_action, entries))
        try:
            codes = bytes(map(_CODES.__getitem__, actions))
        except KeyError:
            self.unknown.update(action for action in actions if action not in _CODES)
            known = [entry for entry in entries if entry["action"] in _CODES]
            if known:
                self._add(known)
            return
        if OOM in codes:
            for entry in entries:
                # An oom has no address; PyTorch reports the device's free bytes there.
                entry.setdefault("addr", entry.get("device_free", UNKNOWN))
        for name, code in _CODES.items():
            self.counts[name] += codes.count(code)
        addresses = list(map(_address, entries))
        self.freed.update(compress(addresses, codes.translate(_FREES)))
        self._times_us.extend(map(_time_us, entries))
        if "pool_id" in entries[0]:
            pools = self._pools.numbers(list(map(_pool, entries)))
        else:
            pools = list(map(self._pools.at, addresses))
        tags = [entry.get("user_metadata", "") for entry in entries]
        self._tags.extend(tags)
        for name, column in (
            ("action", list(codes)),
            ("address", addresses),
            ("size_bytes", list(map(_size, entries))),
            ("stream", list(map(_stream, entries))),
            ("pool", pools),
            ("stack", self._stacks.numbers([entry.get("frames") or None for entry in entries])),
            ("module", self._module_numbers(tags)),
        ):
            self._parts[name].extend(_array(column))

    def columns(self) -> dict[str, bytes]:
        """Return columns of window.EVENTS."""
        steps, phases = array("q"), array("q")
        starts = 0
        for mark, end in zip(self._marks, self.bounds()[1:], strict=True):
            steps += array("q", [mark.step]) * (end - starts)
            phases += array("q", [mark.phase]) * (end - starts)
            starts = end
        times = array("q", [time * 1000 for time in self._times_us])
        columns = {**self._parts, "time_ns": times, "step": steps, "phase": phases}
        return {name: column.tobytes() for name, column in columns.items()}

    def private_allocations(self) -> Counter[int]:
        """Count allocations in each pool except the default one; UNKNOWN: the pool is not known."""
        pools = self._parts["pool"]
        if pools.count(0) == len(pools):
            return Counter()
        return Counter(
            pool for pool, action in zip(pools, self._parts["action"], strict=True) if pool and action == ALLOCATED
        )

    def bounds(self) -> list[int]:
        """Return the position of each mark's first event, and the number of events. From the clock, and from metadata where
        present."""
        starts, times, count = [0], self._times_us, len(self._times_us)
        for number, mark in enumerate(self._marks[1:], 1):
            place = bisect_left(times, mark.time_us, starts[-1])
            # Events of other threads (autograd's) have no tag, and the two clocks may differ by some microseconds.
            while place < count and UNKNOWN < self._mark_of(self._tags[place]) < number:
                place += 1
            while place > starts[-1] and self._mark_of(self._tags[place - 1]) >= number:
                place -= 1
            starts.append(place)
        return [*starts, count]

    def _mark_of(self, tag: str) -> int:
        number = tag[len(self._tag) :].split(".", 1)[0] if tag.startswith(self._tag) else ""
        return int(number) if number.isdecimal() else UNKNOWN

    def _module_numbers(self, tags: list[str]) -> list[int]:
        known = self._modules
        for tag in set(tags).difference(known):
            after_dot = tag.rsplit(".", 1)[-1] if tag.startswith(self._tag) and "." in tag else ""
            known[tag] = int(after_dot) if after_dot.isdecimal() else UNKNOWN
        return list(map(known.__getitem__, tags))


def _array(column: list[int]) -> array[int]:
    """Convert a list: a fourth of the time of single appends; a tenth for equal values, as in most pools and streams."""
    if column and column[0] == column[-1] and column.count(column[0]) == len(column):
        return array("q", column[:1]) * len(column)
    return array("q", column)
