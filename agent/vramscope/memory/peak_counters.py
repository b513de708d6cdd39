"""Reads the CUDA caching allocator, and shares its one peak counter fairly with the user.

PyTorch keeps one set of peak counters a device (pytorch issue 16266): whoever resets them for an exact peak of a
step breaks everybody else who reads them. So this module owns the counters after attach:

* :class:`PeakCounter` cuts time into intervals. A cut reads the allocator once and resets its peaks, so each interval's
  peak is the allocator's own. What a reset wipes out is carried: the highest of each peak since the *user's* last reset.
* :func:`share_peak_counters` puts two thin functions in front of ``torch._C``'s, so that ``max_memory_allocated()``,
  ``memory_stats()``, ``reset_peak_memory_stats()`` and their ``torch.accelerator`` twins answer as without the agent.
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
"""Functions of torch._C that every kind of cache release calls in the end."""

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

# All in C: 29 peaks out of the nested dict in 1.8 µs; a comprehension takes four times that.
_arrays_of = itemgetter(*_ARRAYS)
_pools_of = itemgetter(*_POOLS)
_peak_of = itemgetter("peak")

_KNOWN_MOST = 256
_NOTHING: Final = (0, 0)

BLOCK_BYTES = 512
"""Smallest block of the CUDA caching allocator."""


def block_bytes(size: int) -> int:
    """What the allocator counts for a storage of that size: whole blocks."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def rounded_bytes(size: int, divisions: Sequence[int] = ()) -> int:
    """Size of a request after the allocator's rounding."""
    if divisions and size >= BLOCK_BYTES:
        power = size.bit_length() - 1
        parts = divisions[min(max(power - 20, 0), len(divisions) - 1)]
        if parts > 1 and size > BLOCK_BYTES * parts:
            step = (1 << power) // parts
            return -(-size // step) * step
    return max(BLOCK_BYTES, block_bytes(size))


def peaks_of(stats: Stats) -> tuple[int, ...]:
    """Every peak in one reading, in a fixed order (9 arrays x 3 pools, then the two oversize counters)."""
    return (
        *map(_peak_of, chain.from_iterable(map(_pools_of, _arrays_of(stats)))),
        stats["oversize_allocations"]["peak"],
        stats["oversize_segments"]["peak"],
    )


class Interval(NamedTuple):
    """What the allocator says of the time between two cuts."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    reset_seen: int
    """0: nobody else reset the peaks. 1: somebody did through PyTorch's functions, the peaks are exact. 2: behind them,
    lower bounds."""


class Peaks:
    """Highest allocated and reserved bytes since a moment of somebody's own (PeakCounter.begin)."""

    __slots__ = ("allocated_bytes", "reserved_bytes")

    def __init__(self, allocated_bytes: int, reserved_bytes: int) -> None:
        self.allocated_bytes, self.reserved_bytes = allocated_bytes, reserved_bytes

    def take(self, stats: Stats) -> None:
        """Raise them to the peaks of a reading."""
        self.allocated_bytes = max(self.allocated_bytes, stats["allocated_bytes"]["all"]["peak"])
        self.reserved_bytes = max(self.reserved_bytes, stats["reserved_bytes"]["all"]["peak"])


class PeakCounter:
    """The peak counters of one device, cut into intervals on our side and whole on the user's.

    Cost of :meth:`cut` on the training thread: one ``_cuda_memoryStats``, which takes 11 µs in a tight loop and about 25
    between the kernels of a training, where the caches are cold; what is done with the reading adds next to nothing.
    """

    def __init__(self, device: int, read: ReadStats, reset: ResetPeaks, *, from_the_start: bool = False) -> None:
        self.device = device
        self._read = read
        self._reset = reset
        # Re-entrant: a signal handler of the user's may ask for the peak while we hold it on the same thread.
        self._lock = threading.RLock()
        self._carried: tuple[int, ...] = ()
        self._carried_private: dict[Any, tuple[int, ...]] = {}
        self._known: set[tuple[int, ...]] = set()
        self._lost = _NOTHING
        """Peaks of the running interval that resets within it have wiped out."""
        self._reset_seen = 0
        self._measured: list[Peaks] = []
        self._start_bytes = 0
        self._sampled_bytes = 0
        self.newest: Stats = {}
        """Counters at the last cut."""
        if not from_the_start:
            self.cut()  # what came before attach belongs to the user's counters alone

    def sample(self) -> Stats:
        """A reading for the sampler's thread; what it sees is remembered, to find out foreign resets."""
        with self._lock:
            stats = self._read(self.device)
            self._sampled_bytes = max(self._sampled_bytes, stats["allocated_bytes"]["all"]["current"])
        return stats

    def cut(self) -> Interval:
        """End the interval that runs: its exact peaks, and a fresh start for the next."""
        with self._lock:
            stats = self.newest = self._read(self.device)
            self._reset(self.device)
            for peaks in self._measured:
                peaks.take(stats)
            # A training repeats itself: most intervals' peaks were seen before, and are in the carried ones already.
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
        """Peaks from now on, until ``end``, and the reading with which they begin. The running interval keeps its own."""
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
        """The last reading of what ``begin`` began; its peaks are complete then."""
        with self._lock:
            stats = self._read(self.device)
            peaks.take(stats)
            self._measured = [one for one in self._measured if one is not peaks]
        return stats

    def so_far(self) -> Interval:
        """Peaks of the running interval, which continues."""
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
        # A peak below what is known to have been allocated was reset by somebody whom we cannot intercept.
        floor = self._sampled_bytes if self._sampled_bytes > self._start_bytes else self._start_bytes
        if peak < floor:
            peak, seen = floor, 2
        return Interval(peak, peak_reserved, current, reserved["current"], seen)

    def peak_now(self) -> int:
        """Highest allocated bytes in the interval that runs."""
        peak: int = self._read(self.device)["allocated_bytes"]["all"]["peak"]
        return max(peak, self._lost[0])

    def user_stats(self, stats: Stats) -> Stats:
        """A reading as it would be without us: peaks since the user's last reset."""
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
        """The user resets the peaks: theirs restart, and our interval keeps its own."""
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
        """Keep the peaks that a reset within the interval wipes out."""
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
    """Wraps the functions of ``torch._C`` and owns the counters: one object a process (share_peak_counters)."""

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
        """The counter of a device, made at the first call. CUDA must be initialised.

        from_the_start   CUDA came up after attach: the peak so far is part of the first step, not of what was before
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
                # The same counters under the same names; other accelerators never have a counter of ours.
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
"""Held while the first user of a device, of several threads, makes its counter."""


def _after_fork() -> None:
    global _making
    _making = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def share_peak_counters() -> SharedPeakCounters:
    """The process's shared counters. They stay in place after detach: what was cut away before is still carried."""
    global _shared
    with _making:
        if _shared is None:
            _shared = SharedPeakCounters()
        return _shared


def limit_bytes(device: int) -> int | None:
    """Bytes that ``set_per_process_memory_fraction`` allows on a device; None: no limit, or unknown to this torch."""
    import torch

    read = getattr(torch._C, "_cuda_getMemoryFraction", None)
    fraction: float = 1.0 if read is None or torch.cuda.get_allocator_backend() != "native" else read(device)
    # The allocator multiplies the properties' total, and takes 1.0 for no limit at all.
    return int(fraction * torch.cuda.get_device_properties(device).total_memory) if fraction < 1 else None
