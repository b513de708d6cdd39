"""Reads the counters of the CUDA caching allocator, and lets the agent and the user reset its peaks independently.

PyTorch has one set of peak counters per device (pytorch issue 16266). A reset for the exact peak of a step changes them for all
other readers. So this module owns the counters after attach:

* :class:`PeakCounter` divides time into intervals. A cut reads the allocator once and resets its peaks, so the peak of each
  interval is exact. It keeps the highest value of each peak since the *user's* last reset.
* :func:`share_peak_counters` wraps the functions of ``torch._C``, so that ``max_memory_allocated()``, ``memory_stats()``,
  ``reset_peak_memory_stats()`` and their counterparts in ``torch.accelerator`` return the same as without the agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

Stats = dict[str, Any]
ReadStats = Callable[[int], Stats]
ResetPeaks = Callable[[int], None]

EMPTIERS: Final = ("_cuda_emptyCache", "_accelerator_emptyCache")
"""Functions of torch._C that every release of the cache calls."""

_ARRAYS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_POOLS = ("all", "small_pool", "large_pool")
_PRIVATE = "reserved_bytes_by_private_pools"  # torch 2.13 and later
_OVERSIZE = ("oversize_allocations", "oversize_segments")

# These run in C and read 29 peaks of the nested dict in 1.8 µs. A comprehension takes four times as long.
_arrays_of = itemgetter(*_ARRAYS)
_pools_of = itemgetter(*_POOLS)
_peak_of = itemgetter("peak")

_KNOWN_MOST = 256
_NOTHING: Final = (0, 0)

BLOCK_BYTES = 512
"""Smallest block of the CUDA caching allocator."""


def block_bytes(size: int) -> int:
    """Return the bytes that the allocator counts for a storage of this size, in whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def rounded_bytes(size: int, divisions: Sequence[int] = ()) -> int:
    """Return the size of a request after the allocator's rounding."""
    if divisions and size >= BLOCK_BYTES:
        power = size.bit_length() - 1
        parts = divisions[min(max(power - 20, 0), len(divisions) - 1)]
        if parts > 1 and size > BLOCK_BYTES * parts:
            step = (1 << power) // parts
            return -(-size // step) * step
    return max(BLOCK_BYTES, block_bytes(size))


def peaks_of(stats: Stats) -> tuple[int, ...]:
    """Return all peaks of a reading, in a fixed order (9 arrays x 3 pools, then the two oversize counters)."""
    return (
        *map(_peak_of, chain.from_iterable(map(_pools_of, _arrays_of(stats)))),
        stats["oversize_allocations"]["peak"],
        stats["oversize_segments"]["peak"],
    )


class Interval(NamedTuple):
    """Counters of the allocator for the time between two cuts."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    reset_seen: int
    """0: no other code reset the peaks. 1: other code reset them by PyTorch's functions; the peaks are exact. 2: other code
    reset them in another way; the peaks are lower bounds."""


class Peaks:
    """Highest allocated and reserved bytes of one measurement (PeakCounter.begin)."""

    __slots__ = ("allocated_bytes", "reserved_bytes")

    def __init__(self, allocated_bytes: int, reserved_bytes: int) -> None:
        self.allocated_bytes, self.reserved_bytes = allocated_bytes, reserved_bytes

    def take(self, stats: Stats) -> None:
        """Raise the values to the peaks of a reading."""
        self.allocated_bytes = max(self.allocated_bytes, stats["allocated_bytes"]["all"]["peak"])
        self.reserved_bytes = max(self.reserved_bytes, stats["reserved_bytes"]["all"]["peak"])


class PeakCounter:
    """The peak counters of one device. The agent sees them per interval, and the user since the user's last reset.

    :meth:`cut` calls ``_cuda_memoryStats`` once on the training thread. That takes 11 µs in a tight loop, and about 25 µs between
    the kernels of a training, where the caches are cold. Everything else in it takes almost no time.
    """

    def __init__(self, device: int, read: ReadStats, reset: ResetPeaks, *, from_the_start: bool = False) -> None:
        self.device = device
        self._read = read
        self._reset = reset
        # Reentrant, because a signal handler of the user may read the peak while the same thread holds the lock.
        self._lock = threading.RLock()
        self._carried: tuple[int, ...] = ()
        self._carried_private: dict[Any, tuple[int, ...]] = {}
        self._known: set[tuple[int, ...]] = set()
        self._lost = _NOTHING
        """Peaks of the running interval before a reset within it."""
        self._reset_seen = 0
        self._measured: list[Peaks] = []
        self._start_bytes = 0
        self._sampled_bytes = 0
        self.newest: Stats = {}
        """Counters at the last cut."""
        if not from_the_start:
            self.cut()  # peaks from before attach count for the user only

    def sample(self) -> Stats:
        """Read the counters for the sampler's thread. The value is remembered, to detect resets by other code."""
        with self._lock:
            stats = self._read(self.device)
            self._sampled_bytes = max(self._sampled_bytes, stats["allocated_bytes"]["all"]["current"])
        return stats

    def cut(self) -> Interval:
        """End the running interval and begin the next one. Return the counters of the ended interval."""
        with self._lock:
            stats = self.newest = self._read(self.device)
            self._reset(self.device)
            for peaks in self._measured:
                peaks.take(stats)
            # Steps repeat: the peaks of most intervals occurred before, and are part of the carried peaks already.
            own = peaks_of(stats)
            if own not in self._known or stats.get(_PRIVATE):
                self._carry(own, stats.get(_PRIVATE) or {})
            interval = self._interval(stats)
            if self._lost is not _NOTHING:
                self._lost, self._reset_seen = _NOTHING, 0
            self._start_bytes = interval.allocated_bytes
            self._sampled_bytes = 0
        return interval

    def begin(self) -> tuple[Peaks, Stats]:
        """Begin a measurement of peaks, which lasts until ``end``. Return it and the first reading.

        The peaks of the running interval do not change.
        """
        with self._lock:
            stats = self._read(self.device)
            self._reset(self.device)
            for peaks in self._measured:
                peaks.take(stats)
            self._carry(peaks_of(stats), stats.get(_PRIVATE) or {})
            self._lose(stats)
            fresh = Peaks(stats["allocated_bytes"]["all"]["current"], stats["reserved_bytes"]["all"]["current"])
            self._measured.append(fresh)
        return fresh, stats

    def end(self, peaks: Peaks) -> Stats:
        """End a measurement that ``begin`` returned. Return the last reading."""
        with self._lock:
            stats = self._read(self.device)
            peaks.take(stats)
            self._measured = [one for one in self._measured if one is not peaks]
        return stats

    def so_far(self) -> Interval:
        """Return the counters of the running interval, which continues."""
        with self._lock:
            return self._interval(self._read(self.device))

    def _interval(self, stats: Stats) -> Interval:
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        current: int = allocated["current"]
        peak: int = allocated["peak"]
        peak_reserved: int = reserved["peak"]
        seen, lost = self._reset_seen, self._lost
        if lost is not _NOTHING:
            peak, peak_reserved = max(peak, lost[0]), max(peak_reserved, lost[1])
        # A peak below a known number of allocated bytes was reset by code that cannot be intercepted.
        floor = self._sampled_bytes if self._sampled_bytes > self._start_bytes else self._start_bytes
        if peak < floor:
            peak, seen = floor, 2
        return Interval(peak, peak_reserved, current, reserved["current"], seen)

    def peak_now(self) -> int:
        """Return the highest allocated bytes of the running interval."""
        peak: int = self._read(self.device)["allocated_bytes"]["all"]["peak"]
        return max(peak, self._lost[0])

    def user_stats(self, stats: Stats) -> Stats:
        """Replace the peaks of a reading by those since the user's last reset, as if there were no agent."""
        with self._lock:
            if not self._carried:
                return stats
            own = peaks_of(stats)
            whole = iter(self._carried if own in self._known else map(max, own, self._carried))
            for array in _arrays_of(stats):
                for pool in _pools_of(array):
                    pool["peak"] = next(whole)
            for name in _OVERSIZE:
                stats[name]["peak"] = next(whole)
            for private_pool, carried in self._carried_private.items():
                entry = stats.get(_PRIVATE, {}).get(private_pool)
                if entry is not None:
                    for pool, peak in zip(_pools_of(entry), carried, strict=True):
                        pool["peak"] = max(pool["peak"], peak)
        return stats

    def user_reset(self) -> None:
        """Handle a reset by the user: the user's peaks start again, and those of the running interval are kept."""
        with self._lock:
            stats = self._read(self.device)
            self._reset(self.device)
            for peaks in self._measured:
                peaks.take(stats)
            self._lose(stats)
            self._reset_seen = self._reset_seen or 1
            self._carried, self._carried_private = (), {}
            self._known.clear()

    def _lose(self, stats: Stats) -> None:
        """Keep the peaks of the running interval before a reset within it."""
        self._lost = (
            max(self._lost[0], stats["allocated_bytes"]["all"]["peak"]),
            max(self._lost[1], stats["reserved_bytes"]["all"]["peak"]),
        )

    def _carry(self, peaks: tuple[int, ...], private: dict[Any, Any]) -> None:
        if peaks not in self._known:
            self._carried = tuple(map(max, self._carried, peaks)) if self._carried else peaks
            if len(self._known) >= _KNOWN_MOST:
                self._known.clear()
            self._known.add(peaks)
        for private_pool, entry in private.items():
            peaks = tuple(map(_peak_of, _pools_of(entry)))
            before = self._carried_private.get(private_pool, peaks)
            self._carried_private[private_pool] = tuple(map(max, before, peaks))


class SharedPeakCounters:
    """Wraps the functions of ``torch._C`` and owns the counters. One object per process (share_peak_counters)."""

    def __init__(self) -> None:
        import torch

        self._native = torch._C
        self.read: ReadStats = torch._C._cuda_memoryStats
        self.reset: ResetPeaks = torch._C._cuda_resetPeakMemoryStats
        self._read_accelerator = getattr(torch._C, "_accelerator_getDeviceStats", None)
        self._reset_accelerator = getattr(torch._C, "_accelerator_resetPeakStats", None)
        self.counters: dict[int, PeakCounter] = {}
        self._install()

    def watch(self, device: int, *, from_the_start: bool = False) -> PeakCounter:
        """Return the counter of a device, which the first call creates. CUDA must be initialized.

        from_the_start   True if CUDA was initialized after attach: the peak so far is then part of the first step
        """
        with _making:
            if device not in self.counters:
                self.counters[device] = PeakCounter(device, self.read, self.reset, from_the_start=from_the_start)
            return self.counters[device]

    def _install(self) -> None:
        counters, read, reset = self.counters, self.read, self.reset

        def memory_stats(device: int) -> Stats:
            counter = counters.get(device)
            stats = read(device)
            return stats if counter is None else counter.user_stats(stats)

        def reset_peaks(device: int) -> None:
            counter = counters.get(device)
            if counter is None:
                reset(device)
            else:
                counter.user_reset()

        self._native._cuda_memoryStats = memory_stats
        self._native._cuda_resetPeakMemoryStats = reset_peaks
        if self._read_accelerator is not None and self._reset_accelerator is not None:
            read_accelerator, reset_accelerator = self._read_accelerator, self._reset_accelerator

            def accelerator_stats(device: int) -> Stats:
                counter = counters.get(device)
                stats: Stats = read_accelerator(device)
                # They have the same counters and names. Only CUDA devices are ever in ``counters``.
                return stats if counter is None else counter.user_stats(stats)

            def accelerator_reset(device: int) -> None:
                if device in counters:
                    counters[device].user_reset()
                else:
                    reset_accelerator(device)

            self._native._accelerator_getDeviceStats = accelerator_stats
            self._native._accelerator_resetPeakStats = accelerator_reset


_shared: SharedPeakCounters | None = None
_making = threading.RLock()
"""Lock for the creation of counters, because several threads may watch a device at the same time."""


def _after_fork() -> None:
    global _making
    _making = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def share_peak_counters() -> SharedPeakCounters:
    """Return the shared counters of the process. They stay in use after detach, because the user's peaks depend on them."""
    global _shared
    with _making:
        if _shared is None:
            _shared = SharedPeakCounters()
        return _shared


def limit_bytes(device: int) -> int | None:
    """Return the limit of ``set_per_process_memory_fraction`` in bytes; None without a limit, or if this torch reports none."""
    import torch

    read = getattr(torch._C, "_cuda_getMemoryFraction", None)
    fraction: float = 1.0 if read is None or torch.cuda.get_allocator_backend() != "native" else read(device)
    # The allocator multiplies the total memory in the device properties. 1.0 means no limit.
    return int(fraction * torch.cuda.get_device_properties(device).total_memory) if fraction < 1 else None
