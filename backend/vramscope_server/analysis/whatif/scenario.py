"""Predicts the reserved memory of one trace under one setting, its certainty, and the smallest device on which the run fits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from vramscope_server.analysis.number_format import times
from vramscope_server.analysis.simulator.program import ALLOC, Program
from vramscope_server.analysis.simulator.replay import UNLIMITED, AddressOrder, Hazard, Replay, replay
from vramscope_server.analysis.simulator.segments import GRANULE
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.block_sizes import SMALL_BYTES
from vramscope_server.analysis.trace.lifetimes import SMALL_SEGMENT_BYTES
from vramscope_server.analysis.trace.trace import Trace, reserved_after
from vramscope_server.analysis.whatif.baseline_replay import (
    USUAL_TOTAL_BYTES,
    earlier_of,
    exact_replay,
    recorded_addresses,
)
from vramscope_server.analysis.whatif.confidence import (
    Caveat,
    Certainty,
    certainty_of,
    doubt_of_device,
    doubts_of_limit,
    doubts_of_others,
    doubts_of_recording,
)
from vramscope_server.analysis.whatif.device import TargetDevice, target_device_of
from vramscope_server.analysis.whatif.program import derivation_of
from vramscope_server.analysis.whatif.variants import IN_SOME_ORDER, UNCUT, ReplayVariant, variants_of
from vramscope_server.analysis.whatif.window_start import beginning_of

STEP_BYTES: Final = 2 << 20
_STEPS_OF_CARD: Final = 512
"""Precision of the smallest device: a 512th of its size, or 2 MiB. Nobody chooses between devices closer than that."""
_ORDERS: Final[tuple[AddressOrder, ...]] = ("rising", "falling", "shuffled")
"""Address orders that cudaMalloc may produce. Up to PyTorch 2.11 they decide between free blocks of one size."""
_STOPS: Final = {
    Hazard.INTERIOR_FREE: "it frees memory by an address inside a segment, which CUDA refuses",
    Hazard.ODD_PAGE: "large_segment_size_mb is odd, and the driver refuses expandable segments with such pages",
    Hazard.POOL_MISCOUNT: "it counts the pages of a private pool of expandable segments wrongly and notices",
}
_lock: Final = threading.Lock()
ReplayCase = tuple[ReplayVariant, AddressOrder]


@dataclass(frozen=True)
class Prediction:
    """Reserved memory of the run under these settings."""

    conf: str
    peak_reserved_bytes: int
    """Peak on the device in question, up to the point where memory runs out, if it does."""
    uncapped_peak_reserved_bytes: int
    """Peak on a device without a limit."""
    peak_allocated_bytes: int
    retries: int
    """Number of times that all cached memory had to be returned: each waits for the GPU."""
    device_allocs: int
    """Calls of cudaMalloc, or mappings of an expandable segment. Each costs about 100 µs or more on a real device."""
    out_of_memory: bool
    out_of_memory_at_event: int | None
    """Event of the trace; None: memory does not run out, or did so before the first event."""
    certainty: Certainty
    """``exact``: to the byte; ``band``: inside the band; ``estimate``: an assumption has no known bounds"""
    reasons: list[str]
    """Reasons why the result is not exact; [] if it is."""
    band: tuple[int, int] | None
    """Band of the uncapped peak, as far as other replays bound it; None: unbounded."""
    notes: list[str]
    """Notes for the reader, the reasons first."""


class Scenario:
    """One trace under one setting. With ``recorded`` the settings are the run's own, and ``conf`` is only their name.

    Raises BadSetting where PyTorch would refuse ``conf``; ValueError where the run used another allocator.
    """

    def __init__(self, trace: Trace, conf: str, *, recorded: bool = False) -> None:
        self.trace, self.conf = trace, conf
        self.profile, other = profile_of(trace.torch)
        own, _ = trace.parsed_settings
        self.settings = own if recorded else AllocatorSettings.parse(conf, self.profile)
        # Settings of the scenario hold for the whole recording. Settings that the program changed did not.
        throughout = trace.earlier_settings is None
        self.is_own = recorded or (throughout and replace(self.settings, text="") == replace(own, text=""))
        with _lock:  # made once, by whichever case needs it first
            self.derivation = derivation_of(trace)
            self.residual = exact_replay(trace).residual
            self.variants = variants_of(trace, own=self.is_own)
        self.notes = [f"{other}."] if other else []
        self.orders = _ORDERS if self.profile.ties == "address" else _ORDERS[:1]

    def run(self, device: TargetDevice, variant: ReplayVariant, order: AddressOrder = "rising") -> Replay:
        return replay(
            variant.program,
            self.settings,
            profile=self.profile,
            device_bytes=device.room_bytes,
            device_total_bytes=device.total_bytes or (None if device.room_bytes < UNLIMITED else USUAL_TOTAL_BYTES),
            # a part of a device whose size is not known is no limit; the recorded settings are replayed as in
            # exact_replay
            limit_bytes=device.limit_bytes if device.total_bytes is not None or self.is_own else UNLIMITED,
            initial=variant.initial,
            address_order=order,
            earlier=earlier_of(self.trace, variant.program) if self.is_own else None,
            # the recorded run on its own device gets the memory that it got
            segment_addresses=recorded_addresses(self.trace)
            if self.is_own and variant is self.variants.predicted and order == "rising"
            else None,
        )

    @property
    def is_bounded(self) -> bool:
        """True if the result has a bound. It has none with max_split_size_mb if the start of the run is unknown."""
        return self.variants.kept is None or self.settings.max_split_bytes >= UNLIMITED

    @cached_property
    def free_device(self) -> TargetDevice:
        """The recorded device without its limit."""
        return replace(target_device_of(self.trace), limit_fraction=None, room_bytes=UNLIMITED)

    @cached_property
    def uncapped(self) -> Replay:
        return self.run(self.free_device, self.variants.predicted)

    @cached_property
    def other_ways(self) -> list[ReplayCase]:
        """Starts from empty memory that are as plausible as ``variants.afresh`` with rising addresses."""
        return [
            *((self.variants.afresh, order) for order in self.orders[1:]),
            *((variant, self.orders[0]) for variant in self.variants.others),
        ]

    @cached_property
    def band(self) -> tuple[int, int] | None:
        """Band of the uncapped peak; None if no other result is equally plausible.

        Replays vary what is unknown: when other streams finish with their memory, and (up to PyTorch 2.11) the addresses of
        cudaMalloc. If the start of the run is unknown, the lower end is at most the peak of the memory in use. The upper end is
        the larger of two peaks, plus one segment for each heap, as a block at another place can cause one more segment:

        - With the initial blocks placed again, plus the error of doing so under the recorded settings, where the truth is known.
        - With the initial blocks at their recorded places, plus the most by which these settings round up the memory that was
          free, plus the same error. With expandable segments the recorded layout may contain that error already.
        """
        variants = self.variants
        uncertain = self.other_ways or variants.kept or variants.to_a_segment
        if self.is_own or not uncertain or stopped(self.uncapped, self.derivation.program):
            return None
        peaks = [self.uncapped.peak_reserved_bytes]
        peaks += [self.run(self.free_device, *way).peak_reserved_bytes for way in self.other_ways]
        if variants.kept is not None:
            most, wrong = max(peaks), abs(variants.missed_bytes)
            kept = self.run(self.free_device, variants.kept).peak_reserved_bytes
            twice = self.settings.expandable_segments and variants.missed_bytes > 0
            most = max(most + wrong, kept + (0 if twice else wrong) + self._rounded_up_bytes)
            peaks += [self.uncapped.peak_active_bytes, most + self._segment_each_bytes]
        if variants.to_a_segment:
            least = max(self.uncapped.peak_active_bytes, min(peaks) - self._segment_each_bytes)
            peaks += [least, max(peaks) + self._segment_each_bytes]
        return min(peaks), max(peaks)

    @property
    def _rounded_up_bytes(self) -> int:
        """Return by how much roundup_power2_divisions can enlarge requests in the memory that was free at the start."""
        parts = [parts for parts in self.settings.divisions if parts > 1]
        there = self.trace.beginning
        in_use = int(there.blocks.size_bytes[there.blocks.state > 0].sum())
        return (int(there.segments.size_bytes.sum()) - in_use) // min(parts) if parts else 0

    @property
    def _segment_each_bytes(self) -> int:
        """Return the bytes of one segment for each heap that gets a request."""
        program = self.derivation.program
        asked = program.op == ALLOC
        large = program.size_bytes[asked] > SMALL_BYTES
        heaps = np.unique(np.stack([program.stream[asked], program.pool[asked], large]), axis=1)
        of_large = int(heaps[2].sum())
        of_small = int(heaps.shape[1]) - of_large
        return of_large * self.settings.large_segment_bytes + of_small * SMALL_SEGMENT_BYTES

    def prediction(self, device: TargetDevice) -> Prediction:
        uncapped = done = self.uncapped
        is_own_device = device == target_device_of(self.trace)
        if self.is_own and is_own_device and device.total_bytes is None:
            # The size is known only as what the run could use: it was full where memory was returned or a request failed.
            device = replace(device, room_bytes=min(device.room_bytes, exact_replay(self.trace).device_bytes))
        # A device far larger than the reserved memory never fills up. A limit is a fraction of this device.
        if self._is_limited(device) or uncapped.peak_reserved_bytes * 1.1 + (64 << 20) > device.room_bytes:
            # On another device the whole run would differ, its initial layout included.
            done = self.run(device, self.variants.predicted if is_own_device else self.variants.afresh)
        failed = done.out_of_memory_at
        event = int(self.derivation.program.event[failed]) if failed >= 0 else -1
        doubts = list(self._doubts(done, device, is_own_device=is_own_device))
        reasons = [doubt.words for doubt in doubts]
        return Prediction(
            conf=self.conf,
            peak_reserved_bytes=done.peak_reserved_bytes,
            uncapped_peak_reserved_bytes=uncapped.peak_reserved_bytes,
            peak_allocated_bytes=done.peak_allocated_bytes,
            retries=done.retries,
            device_allocs=done.device_allocs,
            out_of_memory=failed >= 0,
            out_of_memory_at_event=event if event >= 0 else None,
            certainty=certainty_of(doubts),
            reasons=reasons,
            band=self.band,
            notes=list(dict.fromkeys([*reasons, *self.notes, *self._notes_on(done, device)])),
        )

    def _doubts(self, done: Replay, device: TargetDevice, *, is_own_device: bool) -> Iterator[Caveat]:
        yield from doubts_of_recording(self.trace, self.residual)
        if stopped(done, self.derivation.program):
            why = "; ".join(words for hazard, words in _STOPS.items() if done.hazards & hazard)
            yield Caveat(
                f"PyTorch would stop with an error of its own under these settings: {why}. The result ends there."
            )
        if self.is_own and is_own_device and done.peak_reserved_bytes == int(reserved_after(self.trace).max()):
            return  # this is what happened
        on_a_card = done is not self.uncapped
        if not self.is_own:
            yield from doubts_of_limit(self.trace, self.settings)
        if not self.is_own or on_a_card:
            yield from doubts_of_others(self.trace, self.derivation, by_address=len(self.orders) > 1)
        if self.variants.words:
            yield Caveat(self.variants.words, bounded=True)
            if not self.is_bounded:
                yield Caveat(UNCUT)
        elif self.is_own and not is_own_device and on_a_card and len(self.trace.beginning.segments):
            if beginning_of(self.trace) is None:
                yield Caveat("On another device the whole run would differ, and its beginning is not in the recording.")
            elif self.variants.to_a_segment:
                yield Caveat(IN_SOME_ORDER, bounded=True)
        if on_a_card:
            # Large cached segments may be returned to the device before a retry, and then no retry is counted.
            gave_back = done.device_frees > self.uncapped.device_frees
            is_full = done.out_of_memory_at >= 0 or done.retries > self.uncapped.retries or gave_back
            doubt = doubt_of_device(device, self.settings.per_process_memory_fraction, is_full=is_full)
            if doubt is not None:
                yield doubt

    # ---- the smallest device ----

    def smallest_device(self, device: TargetDevice) -> tuple[int | None, int]:
        """Return the bytes and their uncertainty: the width of the search, and the spread of equally plausible starts.

        Found by bisection between the memory in use and the peak reserved. In rare cases a run fits on a device and fails on a
        slightly larger one. Then this is one of several borders, not always the lowest.
        """
        afresh: ReplayCase = (self.variants.afresh, self.orders[0])
        most = self.uncapped if self.variants.afresh is self.variants.predicted else self.run(self.free_device, *afresh)
        if stopped(most, self.derivation.program):
            return None, 0
        share = min(self.settings.per_process_memory_fraction, device.limit_fraction or 1.0)
        outside = device.outside_bytes or 0
        low = outside + _whole(most.peak_active_bytes) - STEP_BYTES
        high = _whole(max(outside + most.peak_reserved_bytes, most.peak_reserved_bytes / max(share, 1e-6)))
        width = max(STEP_BYTES, high // _STEPS_OF_CARD)
        most_bytes = int(4 * (outside + most.peak_reserved_bytes / max(share, 1e-6)))
        # If the device's size has no other effect, the replay without a limit equals that on a device of its peak.
        known = self._ends_with_the_device(device)
        found = self._border(device, afresh, low, high, width, most_bytes, survives=known)
        if found is None:
            return None, 0
        others = (self._border_near(device, way, found, (low, most_bytes), width) for way in self.other_ways)
        away = max((abs(other - found) for other in others if other is not None), default=0)
        if self.variants.to_a_segment:
            away += self._segment_each_bytes
        return found, width + away

    def _border(
        self,
        device: TargetDevice,
        way: ReplayCase,
        low: int,
        high: int,
        width: int,
        most_bytes: int,
        *,
        survives: bool = False,
    ) -> int | None:
        """Return a size on which the run fits, such that it fails on one that is at most ``width`` smaller. It fails on ``low``.

        ``survives``: the run is known to fit on ``high``.
        """
        while not survives and not self._survives(device.of(high), way):
            if high > most_bytes:
                return None
            low, high = high, _whole(high * 1.05 + width)
        while high - low > width:
            middle = _whole((low + high) / 2)
            if middle >= high:
                break
            enough = self._enough(device.of(middle), way)
            if enough is not None:
                high = enough
            else:
                low = middle
        return high

    def _border_near(
        self, device: TargetDevice, way: ReplayCase, found: int, bounds: tuple[int, int], width: int
    ) -> int | None:
        """Return the same for another start. If its border is the one found before, two replays suffice."""
        least, most_bytes = bounds
        if not self._survives(device.of(found), way):
            return self._border(device, way, found, _whole(found + width), width, most_bytes)
        high, by = found, width
        while high - by > least and self._survives(device.of(high - by), way):
            high, by = high - by, 2 * by
        if by == width:
            return high
        return self._border(device, way, max(least, high - by), high, width, most_bytes, survives=True)

    def _survives(self, device: TargetDevice, way: ReplayCase) -> bool:
        return self._enough(device, way) is not None

    def _enough(self, device: TargetDevice, way: ReplayCase) -> int | None:
        """Return a size up to this device's on which the run fits: its peak reserved. None if it fits on none."""
        done = self.run(device, *way)
        if done.out_of_memory_at >= 0 or stopped(done, self.derivation.program):
            return None
        assert device.total_bytes is not None
        # A run that fits takes the same course on a device of its peak. One that fails here also fails on a smaller device.
        needed = _whole((device.outside_bytes or 0) + done.peak_reserved_bytes)
        return min(device.total_bytes, needed) if self._ends_with_the_device(device) else device.total_bytes

    def _ends_with_the_device(self, device: TargetDevice) -> bool:
        """Return True if the device's size only decides when cudaMalloc fails: no limit or address range depends on it."""
        settings = self.settings
        return (
            min(settings.per_process_memory_fraction, device.limit_fraction or 1.0) == 1.0
            and not settings.expandable_segments
            and not settings.throw_on_cudamalloc_oom
            and settings.large_segment_bytes % GRANULE == 0  # the device gives whole granules
        )

    def _is_limited(self, device: TargetDevice) -> bool:
        fraction = min(self.settings.per_process_memory_fraction, device.limit_fraction or 1.0)
        return device.total_bytes is not None and fraction < 1

    def _notes_on(self, done: Replay, device: TargetDevice) -> Iterator[str]:
        settings = self.settings
        if device.total_bytes is None and settings.per_process_memory_fraction < 1:
            yield "per_process_memory_fraction is a share of the device, whose size is unknown: no limit is assumed."
        if settings.garbage_collection_threshold and not self._is_limited(device):
            yield "garbage_collection_threshold does nothing without a limit (per_process_memory_fraction below 1)."
        if done.hazards & Hazard.UNBOUNDED_GROWTH:
            yield (
                f"Free memory was skipped {times(done.passed_over)} because of max_split_size_mb: reserved memory "
                "keeps growing."
            )


def stopped(done: Replay, program: Program) -> bool:
    """Return True if a replay ended before the program did, for another reason than lack of memory."""
    return done.out_of_memory_at < 0 and done.operations < len(program)


def _whole(size: float) -> int:
    """Round up to the steps in which devices are compared."""
    return -int(-size // STEP_BYTES) * STEP_BYTES
