"""Summarizes a profile: one row per operation, module or source line, with its time, its bytes, and its bytes at the peak."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from vramscope.profiler.events import ProfileEvents
from vramscope.profiler.raw import DeviceCounters, PhaseMark, RawProfile
from vramscope.profiler.rows import NONE, Allocation, ProfiledLine
from vramscope.profiler.sliced import sliced
from vramscope.protocol import series
from vramscope.protocol.profile import MAX_ROWS, NO_LINE, NOT_ATTRIBUTED, OTHER, OUTSIDE, PYTHON, QUANTITIES, Columns

_AT: Final = {name: position for position, name in enumerate(QUANTITIES)}
CALLS, CPU, SELF_CPU, DEVICE, SELF_DEVICE, ALLOCATED, SELF_ALLOCATED, FREED, SELF_FREED, PEAK, SELF_PEAK = range(
    len(_AT)
)

Keys = tuple[list[Hashable], list[Hashable], list[Hashable]]
_UNATTRIBUTED: Final[Keys] = ([(NOT_ATTRIBUTED, series.UNKNOWN)], [NOT_ATTRIBUTED], [NOT_ATTRIBUTED])


class SummaryTable:
    """Rows by their key; each is a list in the order of profile.QUANTITIES."""

    def __init__(self) -> None:
        self.rows: dict[Hashable, list[int]] = {}

    def row(self, key: Hashable) -> list[int]:
        found = self.rows.get(key)
        if found is None:
            found = self.rows[key] = [0] * len(QUANTITIES)
        return found

    def add(self, quantity: int, keys: Iterable[Hashable], amount: int) -> None:
        """Add to the innermost key without callees, and to each enclosing key with callees."""
        first = True
        for key in keys:
            row = self.row(key)
            row[quantity] += amount
            if first:
                row[quantity + 1] += amount
                first = False

    def bounded(self, other: Hashable) -> dict[Hashable, list[int]]:
        """Return at most MAX_ROWS rows: the smallest are summed in one."""
        if len(self.rows) <= MAX_ROWS:
            return self.rows
        weight = sorted(
            self.rows.items(), key=lambda item: (item[1][ALLOCATED] + item[1][FREED], item[1][CPU]), reverse=True
        )
        kept, rest = dict(weight[: MAX_ROWS - 1]), weight[MAX_ROWS - 1 :]
        # Values with callees are not summed, because the same bytes or time would count twice.
        sums = [sum(row[position] for _, row in rest) for position in range(len(QUANTITIES))]
        for whole in (CPU, DEVICE, ALLOCATED, FREED, PEAK):
            sums[whole] = sums[whole + 1]
        kept[other] = sums
        return kept


class StringTable:
    """Texts with consecutive numbers, each once."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        text = text[:1000]
        known = self._numbers.get(text)
        if known is None:
            known = self._numbers[text] = len(self.words)
            self.words.append(text)
        return known


class ProfilePeak:
    """The time of the highest allocated bytes, and the allocations that existed then."""

    def __init__(self, events: list[Allocation], counters: DeviceCounters | None, pause: Callable[[], None]) -> None:
        self.bytes: int | None = None
        self.time_ns: int | None = None
        self.alive: list[Allocation] = []
        self.before_bytes: int | None = None
        start = None if counters is None else counters.start.get("allocated_bytes.all.current")
        self.start_bytes = start
        position = NONE
        if start is not None:
            self.bytes = start
        for number, event in enumerate(sliced(events, pause)):
            if event.total_bytes != series.UNKNOWN and (self.bytes is None or event.total_bytes > self.bytes):
                self.bytes, self.time_ns, position = event.total_bytes, event.time_ns, number
        alive: dict[int, Allocation] = {}
        freed_before = 0
        for event in sliced(events[: position + 1], pause):
            if event.size_bytes > 0:
                alive[event.address] = event
            elif alive.pop(event.address, None) is None:
                freed_before -= event.size_bytes
        self.alive = list(alive.values())
        if start is not None and self.bytes is not None:
            # Autograd's threads free a last graph when they are not profiled. Memory that the profiler did not see counts
            # as allocated before.
            alive_bytes = sum(event.size_bytes for event in self.alive)
            self.before_bytes = max(0, min(start - freed_before, self.bytes - alive_bytes))

    @property
    def unattributed_bytes(self) -> int | None:
        if self.bytes is None or self.before_bytes is None:
            return None
        return max(0, self.bytes - self.before_bytes - sum(event.size_bytes for event in self.alive))


class ProfileTotals:
    """The three tables of one device's profile. ``pause`` is called between slices."""

    def __init__(self, events: ProfileEvents, raw: RawProfile, device: int, pause: Callable[[], None]) -> None:
        self._events = events
        self.pause = pause
        self._marks = raw.marks
        self._mark_times = [mark.time_ns for mark in raw.marks]
        # The middle of an operation decides: the optimizer's step, for example, begins before the agent's hook in it is called.
        self._phases = [
            self.mark_at(start + duration // 2).phase
            for start, duration in sliced(zip(events.starts, events.durations, strict=True), pause)
        ]
        self._around: dict[int, list[Hashable]] = {}
        self.operations, self.modules, self.lines = SummaryTable(), SummaryTable(), SummaryTable()
        self.counters = next((one for one in raw.counters if one.device == device), None)
        self.allocations = [event for event in events.allocations if event.device == device]
        self.peak = ProfilePeak(self.allocations, self.counters, pause)
        self.span_ns = max(0, raw.end_ns - raw.start_ns)
        self.device_busy_ns = covered(
            [(kernel.start_ns, kernel.start_ns + kernel.duration_ns) for kernel in events.kernels]
        )
        self._sum_times()
        self._sum_memory()

    def mark_at(self, time_ns: int) -> PhaseMark:
        """Return step and phase at a time."""
        return self._marks[max(0, bisect_right(self._mark_times, time_ns) - 1)]

    def keys(self, row: int) -> list[Hashable]:
        """Return the operations around a row, innermost first: each name once."""
        known = self._around.get(row)
        if known is None:
            events = self._events
            found: dict[Hashable, None] = {}
            at = row
            while at != NONE:
                if events.names[at]:
                    found[events.names[at], self._phases[at]] = None
                at = events.parents[at]
            known = self._around[row] = list(found)
        return known

    def _keys_of(self, row: int) -> Keys:
        """Return (operations, modules, lines) that a row counts for."""
        events = self._events
        phase = series.UNKNOWN if row == NONE else self._phases[row]
        operations = self.keys(row) if row != NONE else []
        modules = events.module_chains.around(events.modules[row]) if row != NONE else []
        lines = events.line_chains.around(events.lines[row]) if row != NONE else []
        return operations or [(PYTHON, phase)], modules or [OUTSIDE], lines or [NO_LINE]

    def _add(self, quantity: int, row: int, amount: int) -> None:
        self._add_to(quantity, self._keys_of(row), amount)

    def _sum_times(self) -> None:
        events = self._events
        selfs = list(events.durations)
        tops: list[tuple[int, int]] = []
        for row, parent in enumerate(sliced(events.parents, self.pause)):
            # Work of another thread at the same time is not part of the operation (backward's thread, for example).
            if parent != NONE and events.threads[parent] == events.threads[row]:
                selfs[parent] -= events.durations[row]
            else:
                tops.append((events.starts[row], events.starts[row] + events.durations[row]))
        for row, name in enumerate(sliced(events.names, self.pause)):
            self._add(CPU, row, max(0, selfs[row]))
            parent = events.parents[row]
            if name:
                self.operations.row((name, self._phases[row]))[CALLS] += 1
            elif events.modules[row] != NONE:
                self.modules.row(events.module_chains.keys[events.modules[row]])[CALLS] += 1
            line = events.lines[row]
            if name and line != NONE and (parent == NONE or events.lines[parent] != line):
                self.lines.row(events.line_chains.keys[line])[CALLS] += 1
        between = max(0, self.span_ns - covered(tops))
        self.operations.add(CPU, [(PYTHON, series.UNKNOWN)], between)
        self.modules.add(CPU, [OUTSIDE], between)
        self.lines.add(CPU, [NO_LINE], between)
        for kernel in sliced(events.kernels, self.pause):
            self._add(DEVICE, kernel.operation, kernel.duration_ns)

    def _sum_memory(self) -> None:
        for event in sliced(self.allocations, self.pause):
            self._add_memory(ALLOCATED if event.size_bytes > 0 else FREED, event, abs(event.size_bytes))
        for event in sliced(self.peak.alive, self.pause):
            self._add_memory(PEAK, event, event.size_bytes)
        seen_allocated = sum(event.size_bytes for event in self.allocations if event.size_bytes > 0)
        seen_freed = -sum(event.size_bytes for event in self.allocations if event.size_bytes < 0)
        for quantity, counted, recorded in (
            (ALLOCATED, self.allocated_bytes, seen_allocated),
            (FREED, self.freed_bytes, seen_freed),
        ):
            if counted is not None and counted > recorded:
                self._unattributed(quantity, counted - recorded)

    def memory_keys(self, event: Allocation) -> Keys:
        """Return (operations, modules, lines) that an allocation or free counts for, each innermost first."""
        if event.operation != NONE:
            return self._keys_of(event.operation)
        if event.thread != self._events.main_thread:
            return _UNATTRIBUTED
        lines = self._events.line_chains.around(event.line) or [NO_LINE]
        return [(PYTHON, self.mark_at(event.time_ns).phase)], [OUTSIDE], lines

    def _add_memory(self, quantity: int, event: Allocation, amount: int) -> None:
        self._add_to(quantity, self.memory_keys(event), amount)

    def _unattributed(self, quantity: int, amount: int) -> None:
        self._add_to(quantity, _UNATTRIBUTED, amount)

    def _add_to(self, quantity: int, keys: Keys, amount: int) -> None:
        for table, of_table in zip((self.operations, self.modules, self.lines), keys, strict=True):
            table.add(quantity, of_table, amount)

    @property
    def allocated_bytes(self) -> int | None:
        return None if self.counters is None else self.counters.rise("allocated_bytes.all.allocated")

    @property
    def freed_bytes(self) -> int | None:
        return None if self.counters is None else self.counters.rise("allocated_bytes.all.freed")


def covered(spans: list[tuple[int, int]]) -> int:
    """Return the length of the union of (begin, end)."""
    total, reached = 0, -(1 << 62)
    for begin, end in sorted(spans):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total


def operation_columns(sums: ProfileTotals, words: StringTable, events: ProfileEvents) -> Columns:
    """Return columns of the table ``operations``. The shapes are those of the call with the most allocated bytes."""
    largest: dict[Hashable, tuple[int, str]] = {}
    allocated_by_row: dict[int, int] = {}
    for event in sliced(sums.allocations, sums.pause):
        if event.size_bytes > 0 and event.operation != NONE:
            allocated_by_row[event.operation] = allocated_by_row.get(event.operation, 0) + event.size_bytes
    for row, name in enumerate(sliced(events.names, sums.pause)):
        if events.shapes[row]:
            key = (name, sums.mark_at(events.starts[row]).phase)
            if key not in largest or allocated_by_row.get(row, 0) > largest[key][0]:
                largest[key] = allocated_by_row.get(row, 0), events.shapes[row]

    def key_columns(key: Any) -> tuple[int, int, int]:
        shapes = largest.get(key, (0, ""))[1]
        return words.number(key[0]), key[1], words.number(shapes)

    return _columns(sums.operations, (OTHER, series.UNKNOWN), ("name", "phase", "shapes"), key_columns, sums, events)


def module_columns(
    sums: ProfileTotals, words: StringTable, events: ProfileEvents, names: dict[int, tuple[str, str]]
) -> Columns:
    """Return columns of the table ``modules``."""

    def key_columns(key: Any) -> tuple[int, int]:
        if not isinstance(key, int):
            name, kind = str(key), ""
        else:
            kind = events.kinds.get(key, "a module of no known model")
            name, kind = names.get(key, (kind, kind))
        return words.number(name), words.number(kind)

    return _columns(sums.modules, OTHER, ("name", "kind"), key_columns, sums, events)


def line_columns(sums: ProfileTotals, words: StringTable, events: ProfileEvents) -> Columns:
    """Return columns of the table ``lines``."""

    def key_columns(key: Any) -> tuple[int, int, int, int]:
        if isinstance(key, ProfiledLine):
            return words.number(key.function), words.number(key.file), key.line, key.last_line
        return words.number(str(key)), words.number(""), series.UNKNOWN, series.UNKNOWN

    return _columns(sums.lines, OTHER, ("name", "file", "line", "last_line"), key_columns, sums, events)


def _columns(
    table: SummaryTable,
    other: Hashable,
    keys: tuple[str, ...],
    key_columns: Any,
    sums: ProfileTotals,
    events: ProfileEvents,
) -> Columns:
    columns = {name: array("q") for name in (*keys, *QUANTITIES)}
    for key, row in sliced(table.bounded(other).items(), sums.pause):
        for name, value in zip(keys, key_columns(key), strict=True):
            columns[name].append(value)
        for name, value in zip(QUANTITIES, row, strict=True):
            unknown = (not events.kernels and name in ("device_ns", "self_device_ns")) or (
                sums.counters is None and name.endswith("_bytes")
            )
            columns[name].append(series.UNKNOWN if unknown else value)
    return {name: column.tobytes() for name, column in columns.items()}
