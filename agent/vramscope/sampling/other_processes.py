"""Other processes on the watched devices: which they are, and how their memory changes.

NVML lists them at each reading. Their names are read from ``/proc`` when the list or an amount changes, every few seconds at
most, on the sampler's thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from vramscope.memory.nvml import Running
from vramscope.process.process_origin import UNKNOWN_ORIGIN, ProcessOrigin, origin_of
from vramscope.process.redaction import Secrets
from vramscope.protocol.messages import Event
from vramscope.protocol.other_process import EVENT, GREW_BYTES, MAX_NEIGHBOURS, OtherProcess
from vramscope.protocol.series import OTHER_PROCESSES

REPORT_EVERY_S: Final = 5.0
MOST_NAMED: Final = 16
"""Maximum number of processes on a device that are reported: those with most memory."""
MOST_EVENTS: Final = 500
"""Maximum number of events in a session. After them, processes are no longer reported."""
LEAST_SHARE: Final = 0.05
"""Smallest relative change that is reported, besides GREW_BYTES."""
KEPT_S: Final = 60.0
MOST_READINGS: Final = 600
LOCK_S: Final = 0.2

Sizes = dict[int, "int | None"]


class OtherProcesses:
    """Reports them as events, and remembers the last minute for an out-of-memory record.

    put       called with each event, on the sampler's thread
    secrets   removes secrets from command lines; an instance of its own, because it is used on this thread
    now       time in seconds; a parameter for tests
    """

    def __init__(
        self,
        put: Callable[[Event], object],
        step: Callable[[], int],
        secrets: Secrets,
        *,
        origin: Callable[[int, Secrets], ProcessOrigin] = origin_of,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put, self._step, self._secrets, self._origin, self._now = put, step, secrets, origin, now
        self._readings: dict[int, deque[tuple[float, Sizes]]] = {}
        """Times from which on the sizes were as given; the newest is the present."""
        self._peaks: dict[tuple[int, int], int] = {}
        self._reported: dict[tuple[int, int], tuple[int | None, int]] = {}
        """Bytes and highest bytes of the newest report, by device and process."""
        self._origins: dict[int, ProcessOrigin] = {}
        self._slots: dict[int, list[int | None]] = {}
        """Processes that have a series, in the order of OTHER_PROCESSES."""
        self._names_are_here = False
        self._due_s: dict[int, float] = {}
        self._settled: set[int] = set()
        """Devices on which nothing has changed since all was reported."""
        self._events = 0
        self._naming = threading.Lock()

    def note(self, device: int, running: Running | None) -> dict[str, int]:
        """Handle a reading of a device. Return columns of a sample: the largest processes.

        Costs some microseconds unless something is to be reported, and nothing is compared while nothing changes.
        """
        if running is None:
            return {}
        self._names_are_here = running.own_pid == os.getpid()
        others = {pid: size for pid, size in running.bytes_by_pid.items() if pid != running.own_pid}
        readings = self._readings.setdefault(device, deque(maxlen=MOST_READINGS))
        now = self._now()
        if not readings or readings[-1][1] != others:
            readings.append((now, others))
            self._settled.discard(device)
            self._forget(device, others)
            for pid, size in others.items():
                self._peaks[device, pid] = max(self._peaks.get((device, pid), 0), size or 0)
        while len(readings) > 1 and readings[1][0] < now - KEPT_S:
            readings.popleft()
        if device not in self._settled and now >= self._due_s.get(device, 0.0):
            if self._report(device, others):
                self._due_s[device] = now + REPORT_EVERY_S
            else:
                self._settled.add(device)
        with_series = zip(OTHER_PROCESSES, self._slots.get(device, ()), strict=False)
        known = {name: others.get(pid) for name, pid in with_series if pid is not None}
        return {name: size for name, size in known.items() if size is not None}

    def finish(self) -> None:
        """Report the last amounts, at the end of the session."""
        for device, readings in list(self._readings.items()):
            if readings:
                self._report(device, readings[-1][1])

    def described(self, device: int, sizes: Mapping[int, int | None], own_pid: int) -> list[OtherProcess]:
        """Return the processes with their names and their growth, the largest first. Callable from any thread."""
        readings = list(self._readings.get(device, ()))
        now = self._now()
        before = next((one for one in reversed(readings) if one[0] <= now - KEPT_S), readings[0] if readings else None)
        ordered = sorted(sizes.items(), key=lambda one: -(one[1] or 0))[:MAX_NEIGHBOURS]
        found = []
        for place, (pid, size) in enumerate(ordered):
            origin = self._origin_of(pid) if place < MOST_NAMED and own_pid == os.getpid() else UNKNOWN_ORIGIN
            earlier = None if before is None else before[1].get(pid, 0)
            seconds = None if before is None or earlier is None else round(min(KEPT_S, max(0.0, now - before[0])))
            found.append(
                OtherProcess(pid=pid, used_bytes=size, before_bytes=earlier, before_seconds=seconds, **origin._asdict())
            )
        return found

    def _report(self, device: int, others: Sizes) -> bool:
        """Put an event for each process that came, changed or left. Return whether there was one."""
        largest = sorted(others, key=lambda pid: -(others[pid] or 0))[:MOST_NAMED]
        moved = self._assign_series(device, largest, others) if self._events < MOST_EVENTS else ()
        before = {pid: sizes for (place, pid), sizes in self._reported.items() if place == device}
        changed = [
            pid for pid in largest if pid not in before or pid in moved or self._differs(device, pid, others[pid])
        ]
        left = [pid for pid in before if pid not in others]
        for pid in [*changed, *left]:
            if self._events >= MOST_EVENTS:
                return False
            self._events += 1
            self._put(self._event(device, pid, others.get(pid, 0), left=pid in left))
            if pid in left:
                del self._reported[device, pid]
            else:
                self._reported[device, pid] = others[pid], self._peaks.get((device, pid), 0)
        self._forget(device, others)
        return bool(changed or left)

    def _forget(self, device: int, others: Sizes) -> None:
        """Forget processes that have left, once that is reported: another one may have the number later."""
        is_over = self._events >= MOST_EVENTS
        for place, pid in list(self._peaks):
            if place == device and pid not in others and (is_over or (device, pid) not in self._reported):
                del self._peaks[device, pid]
                self._origins.pop(pid, None)

    def _assign_series(self, device: int, largest: list[int], others: Sizes) -> set[int]:
        """Give the largest processes a series each. One that has a series keeps it, unless a much larger one has none.

        Return the processes that have another series than before, or none any more.
        """
        slots = self._slots.setdefault(device, [None] * len(OTHER_PROCESSES))
        before = list(slots)
        slots[:] = [pid if pid in others else None for pid in slots]
        for pid in largest:
            if pid in slots:
                continue
            if None not in slots:
                smallest = min((one for one in slots if one is not None), key=lambda one: others[one] or 0)
                if (others[pid] or 0) - (others[smallest] or 0) < GREW_BYTES:
                    break
                slots[slots.index(smallest)] = None
            slots[slots.index(None)] = pid
        return {
            pid for old, new in zip(before, slots, strict=True) if old != new for pid in (old, new) if pid in others
        }

    def _event(self, device: int, pid: int, size: int | None, *, left: bool) -> Event:
        origin = self._origin_of(pid) if self._names_are_here else UNKNOWN_ORIGIN
        process = OtherProcess(pid=pid, used_bytes=size, **origin._asdict())
        fields = {name: value for name, value in msgspec.structs.asdict(process).items() if value is not None}
        fields |= {"device": device, "ended": left}
        slots = self._slots.get(device, [])
        if pid in slots:
            fields["series"] = OTHER_PROCESSES[slots.index(pid)]
        if peak := self._peaks.get((device, pid)):
            fields["peak_bytes"] = peak
        return Event(time_ns=time.time_ns(), kind=EVENT, step=self._step(), data=fields)

    def _differs(self, device: int, pid: int, size: int | None) -> bool:
        """Whether the bytes, or the highest bytes, differ enough from those of the newest report."""
        reported, reported_peak = self._reported[device, pid]
        if reported is None or size is None:
            return reported is not size
        peak = self._peaks.get((device, pid), 0)
        return abs(size - reported) >= _least(reported) or peak - reported_peak >= _least(reported_peak)

    def _origin_of(self, pid: int) -> ProcessOrigin:
        """Who a process is, read once. Unknown where another thread is reading."""
        known = self._origins.get(pid)
        if known is None and self._naming.acquire(timeout=LOCK_S):
            try:
                known = self._origins[pid] = self._origin(pid, self._secrets)
            finally:
                self._naming.release()
        return known or UNKNOWN_ORIGIN


def _least(size: int) -> float:
    """Smallest change of an amount that is reported."""
    return max(GREW_BYTES, LEAST_SHARE * size)
