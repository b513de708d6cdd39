"""Recommends an allocator setting: the one with the smallest device need, and the least risk among equally good ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from vramscope.protocol.gpu_backend import CUDA_VARIABLE
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.simulator.settings import AllocatorSettings

_DOCS: Final = (
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf"
)
_PYTORCH: Final = "https://github.com/pytorch/pytorch"
WORTH_FRACTION: Final = 0.02
"""Minimum saving as a fraction of the device. A replay is exact, but no two runs of a training are equal."""
SLOW_LEVEL: Final = 2
"""Level of risk from which on a setting may slow the run down."""
SLOW_WORTH_FRACTION: Final = 0.1
"""Minimum saving of such a setting as a fraction of the device."""
NEAR_FRACTION: Final = 0.01
"""Settings whose needs differ by less than this fraction are equally good. The one with the least risk wins."""
MUCH_FRACTION: Final = 0.1
"""Minimum saving as a fraction of reserved memory where there is room: cached memory is returned when it is needed."""

LEAST_EVENTS: Final = 20
"""Minimum number of events for a recommendation. A training step has hundreds."""
COVERED_FRACTION: Final = 0.05
"""Maximum excess of the run's peak reserved over the recording's. Every training has more than this free in small blocks."""


@dataclass(frozen=True)
class Risk:
    """Possible disadvantage of a setting."""

    level: int
    """0: none known; 1: small; 2: may slow the run down; 3: do not use this setting."""
    words: str
    source: str
    """Address of the source; "" without one."""


@dataclass(frozen=True)
class Recommendation:
    """A setting, or the advice to keep the recorded ones."""

    conf: str | None
    """Value for ``variable``; None: keep the recorded settings."""
    words: str
    variable: str = CUDA_VARIABLE
    """Environment variable with the allocator's settings."""


class Candidate(Protocol):
    """Properties of a row of a sweep that the recommendation needs."""

    @property
    def conf(self) -> str: ...
    @property
    def smallest_device_bytes(self) -> int | None: ...
    @property
    def reserved_bytes(self) -> int: ...  # on a device with room; an upper bound if unknown
    @property
    def uncertainty_bytes(self) -> int: ...
    @property
    def is_bounded(self) -> bool: ...
    @property
    def out_of_memory(self) -> bool: ...  # on the device of the sweep
    @property
    def risk(self) -> Risk: ...


def risk_of(settings: AllocatorSettings) -> Risk:
    """Return the most serious risk of these settings."""
    default = AllocatorSettings()
    splits = settings.max_split_bytes != default.max_split_bytes
    if splits and settings.expandable_segments:
        return Risk(
            3,
            (
                "max_split_size_mb together with expandable_segments skips free memory and maps new memory: reserved "
                "memory can grow without end."
            ),
            f"{_PYTORCH}/issues/123548",
        )
    if splits:
        return Risk(
            2,
            (
                "max_split_size_mb has made runs slower: large blocks are freed and allocated again, and the GPU "
                "waits. PyTorch calls it a last resort."
            ),
            f"{_PYTORCH}/pull/113481",
        )
    if settings.throw_on_cudamalloc_oom:
        return Risk(
            2, "throw_on_cudamalloc_oom refuses requests that would succeed after releasing cached memory.", _DOCS
        )
    if settings.garbage_collection_threshold:
        return Risk(
            2,
            "garbage_collection_threshold frees cached blocks early, and cudaFree waits for the GPU; without a limit "
            "(per_process_memory_fraction) it does nothing.",
            _DOCS,
        )
    if settings.expandable_segments:
        return Risk(
            1,
            (
                "expandable_segments is experimental. In older versions, tensors shared between processes (CUDA IPC) "
                "and some communication libraries did not work with it."
            ),
            f"{_PYTORCH}/issues/130330",
        )
    if settings.divisions != default.divisions:
        return Risk(1, "roundup_power2_divisions makes blocks larger than requested.", _DOCS)
    if settings.large_segment_bytes != default.large_segment_bytes:
        return Risk(
            1,
            (
                "large_segment_size_mb changes the segment size for requests of 1 to 10 MiB (20 MiB by default). "
                "Larger segments can stay partly empty. PyTorch added it for speed and published no measurement. On "
                "six trainings, 64 MiB moved the peak by 1.6 % at most."
            ),
            f"{_PYTORCH}/pull/172056",
        )
    if settings.per_process_memory_fraction < 1:
        return Risk(1, "per_process_memory_fraction makes the run fail before the device is full.", _DOCS)
    return Risk(0, "", "")


def without_evidence(events: int, recorded_bytes: int, run_peak_bytes: int | None) -> Recommendation | None:
    """Return a reason against a recommendation, if the recording does not support one; else None.

    recorded_bytes   peak reserved in the recording
    run_peak_bytes   peak reserved of the whole run; None if it is not known
    """
    if events < LEAST_EVENTS:
        number = "1 event" if events == 1 else f"{events:,} events"
        return Recommendation(None, f"No recommendation: the recording has only {number}, too few to compare settings.")
    if run_peak_bytes is not None and run_peak_bytes > (1 + COVERED_FRACTION) * recorded_bytes:
        return Recommendation(
            None,
            f"No recommendation: this recording does not contain the run's peak. The run reserved up to "
            f"{amount(run_peak_bytes)}, here only {amount(recorded_bytes)}. Record a window at the peak.",
        )
    return None


def recommend(recorded: Candidate, others: Sequence[Candidate], total_bytes: int | None = None) -> Recommendation:
    """Recommend the setting that avoids a failure, or certainly saves at least 2 % of the device; 10 % where it may slow the run
    down. Prefer less risk.

    total_bytes   bytes of the device; None: unknown, the run's own need is taken instead
    """
    safe = [one for one in others if one.risk.level < 3 and one.is_bounded]
    if recorded.out_of_memory and (saving := [one for one in safe if not one.out_of_memory]):
        best = min(saving, key=lambda one: (one.risk.level, one.smallest_device_bytes or 0, len(one.conf)))
        words = "The recorded run fails on this device with its settings, and survives with this one."
        return Recommendation(best.conf, f"{words} {best.risk.words}".strip())
    device = recorded.smallest_device_bytes
    if device is None:
        return Recommendation(
            None, "Keep the settings: the need of the recorded run is unknown, so nothing can be compared."
        )
    saved = [
        (one, size, device - size - one.uncertainty_bytes - recorded.uncertainty_bytes)
        for one in safe
        if (size := one.smallest_device_bytes) is not None
    ]
    enough, enough_if_slow = (
        max(1, int((total_bytes or device) * least)) for least in (WORTH_FRACTION, SLOW_WORTH_FRACTION)
    )
    better = [(one, size) for one, size, least in saved if least >= (enough_if_slow if _may_be_slow(one) else enough)]
    slow = [(one, size) for one, size, least in saved if least >= enough and _may_be_slow(one)]
    if not better and slow:
        one, size = min(slow, key=lambda row: row[1])
        return Recommendation(
            None,
            f"Keep the settings: the recorded run needs a device of {amount(device)}. {one.conf} needs {amount(device - size)} "
            f"less, but may slow the run down.{_where_there_is_room(recorded, others)}",
        )
    if not better:
        of = "the device" if total_bytes else "that"
        return Recommendation(
            None,
            f"Keep the settings: the recorded run needs a device of {amount(device)}, and no other setting saves "
            f"{100 * WORTH_FRACTION:.0f} % of {of} for certain.{_where_there_is_room(recorded, others)}",
        )
    least = min(size for _, size in better)
    near = [(one, size) for one, size in better if size - least <= NEAR_FRACTION * device]
    best, size = min(near, key=lambda row: (row[0].risk.level, row[1], len(row[0].conf)))
    why = "" if size == least else f" Other settings need up to {amount(size - least)} less, at more risk."
    words = f"The recorded run survives on a device of {_sizes(size, device)}: {amount(device - size)} less.{why}"
    return Recommendation(best.conf, f"{words} {best.risk.words}".strip())


def _may_be_slow(one: Candidate) -> bool:
    return one.risk.level >= SLOW_LEVEL


def _where_there_is_room(recorded: Candidate, others: Sequence[Candidate]) -> str:
    """Return a sentence on the reserved memory of a device with room; "" if another setting does not lower it much.

    PyTorch returns unneeded cached memory before a run fails, but until then other processes cannot use it.
    """
    safe = [one for one in others if one.risk.level < 2 and one.smallest_device_bytes is not None]
    least = min(safe, key=lambda one: one.reserved_bytes, default=recorded)
    if recorded.reserved_bytes - least.reserved_bytes <= MUCH_FRACTION * recorded.reserved_bytes:
        return ""
    return (
        f" On a device with room, {least.conf} reserves {amount(least.reserved_bytes)} instead of "
        f"{amount(recorded.reserved_bytes)}. That helps if others use the device too."
    )


def _sizes(size: int, device: int) -> str:
    """Format two sizes as ``1.5 GiB instead of 2.0 GiB``, in MiB if both would look the same."""
    words, other = amount(size), amount(device)
    if words == other:
        words, other = f"{size / (1 << 20):,.0f} MiB", f"{device / (1 << 20):,.0f} MiB"
    return f"{words} instead of {other}"
