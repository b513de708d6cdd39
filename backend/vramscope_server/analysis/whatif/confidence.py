"""Certainty of a prediction: exact, inside a band of other replays, or an estimate; and the reasons.

A replay always gives one number. It is exact if the history determines everything it depends on. Each assumption beyond that is
a caveat. Some caveats are bounded by replays of the alternatives, which give a band.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from vramscope_server.analysis.number_format import amount, times
from vramscope_server.analysis.simulator.program import FREE_REQUESTED
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import FREE_COMPLETED
from vramscope_server.analysis.whatif.baseline_replay import Residual
from vramscope_server.analysis.whatif.device import TargetDevice
from vramscope_server.analysis.whatif.program import Derivation

OWN_LIMIT: Final = (
    "A snapshot file does not say whether the program limited its memory "
    "(torch.cuda.set_per_process_memory_fraction). No limit is assumed. With a limit, "
    "garbage_collection_threshold returns memory that counts as reserved here."
)
Certainty = Literal["exact", "band", "estimate"]


@dataclass(frozen=True)
class Caveat:
    """An assumption that the history does not prove."""

    words: str
    bounded: bool = False
    """True if other replays bound the result."""


def certainty_of(doubts: Sequence[Caveat]) -> Certainty:
    if not doubts:
        return "exact"
    return "band" if all(doubt.bounded for doubt in doubts) else "estimate"


def doubts_of_recording(trace: Trace, residual: Residual) -> Iterator[Caveat]:
    """Yield the caveats of every replay, that of the recorded settings on the recorded device included."""
    if not residual.exact:
        yield Caveat(
            "Replaying the recorded settings does not reproduce the recorded peak; predictions for other settings"
            " are unreliable too."
        )
    if trace.lost_events:
        yield Caveat(f"{trace.lost_events:,} events are missing from the recording and are not replayed.")


def doubts_of_others(trace: Trace, derivation: Derivation, *, by_address: bool) -> Iterator[Caveat]:
    """Yield the caveats of other settings and other devices. ``by_address``: addresses decide between blocks of one size."""
    _, unknown = trace.parsed_settings
    if unknown:
        yield Caveat(unknown)
    _, other = profile_of(trace.torch)
    if other and not trace.torch.endswith("or newer"):  # all versions from 2.13 on have the same rules
        yield Caveat(f"{other}.")
    if derivation.unseen_empty_caches:
        yield Caveat(
            f"empty_cache() was called {times(derivation.unseen_empty_caches)} without an effect, at unknown times. "
            "Under these settings it might have returned memory; that is not replayed."
        )
    if derivation.releases_are_guessed:
        yield Caveat(
            f"Memory was returned {times(len(derivation.releases))} just before more was requested. The recording does "
            "not say why; it is assumed that this made room."
        )
    deferred = int(np.count_nonzero(derivation.program.op == FREE_REQUESTED))
    if trace.start is None and trace.events.action[:1].tolist() == [FREE_COMPLETED]:
        deferred -= 1  # the ring buffer lost its request just before; it did not wait for another stream
    if deferred:
        blocks = "1 block" if deferred == 1 else f"{deferred:,} blocks"
        yield Caveat(
            f"{blocks} waited for another stream. The end of the wait is taken from the recorded run; the band "
            "covers no wait at all and a wait twice as long.",
            bounded=True,
        )
    if by_address:
        yield Caveat(
            "In this version, the addresses of cudaMalloc decide between free blocks of one size. The band covers"
            " three orders of addresses.",
            bounded=True,
        )


def doubts_of_limit(trace: Trace, settings: AllocatorSettings) -> Iterator[Caveat]:
    """Yield the caveat of settings that depend on a limit and have none."""
    collects = settings.garbage_collection_threshold and settings.per_process_memory_fraction == 1
    if collects and trace.device_total_bytes is None:
        yield Caveat(OWN_LIMIT)


def doubt_of_device(device: TargetDevice, fraction: float, *, is_full: bool) -> Caveat | None:
    """Return the caveat of a replay that comes close to the size of the device. ``fraction``: the settings' limit.

    None if a limit of PyTorch is reached before the device is full, or if the device is known not to be full.
    """
    limits = [] if device.limit_bytes is None else [device.limit_bytes]
    if fraction < 1 and device.total_bytes is not None:
        limits.append(int(fraction * device.total_bytes))
    if limits and min(limits) <= device.room_bytes:
        return None
    if device.outside_bytes is None:
        return Caveat(
            "The result is close to the size of the device. Other uses of its memory are unknown and taken as 0."
        )
    if not is_full:
        return None
    return Caveat(
        "The device is full in this replay. Other uses of its memory are taken as "
        f"{amount(device.outside_bytes)} throughout."
    )
