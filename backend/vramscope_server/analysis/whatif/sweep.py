"""Replays a trace under several allocator settings, and finds the smallest device on which the run fits with each.

The peak on a device without a limit ranks settings wrongly, because cached memory may be returned when the device is full. So
settings are ranked by the smallest device, found by bisection over replays. Both numbers are shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from vramscope.protocol.gpu_backend import allocator_variable
from vramscope_server.analysis.number_format import amount
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.baseline_replay import Residual, check
from vramscope_server.analysis.whatif.device import TargetDevice, target_device_of
from vramscope_server.analysis.whatif.program import derivation_of
from vramscope_server.analysis.whatif.recommendation import (
    LEAST_EVENTS,
    Recommendation,
    Risk,
    recommend,
    risk_of,
    without_evidence,
)
from vramscope_server.analysis.whatif.scenario import Prediction, Scenario
from vramscope_server.analysis.whatif.window_start import beginning_of

__all__ = ["DEFAULT_SWEEP", "Prediction", "Residual", "Row", "Sweep", "check", "predict", "smallest_device", "sweep"]

DEFAULT_SWEEP: Final = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.95",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "expandable_segments:True,roundup_power2_divisions:8",
    "max_split_size_mb:128,roundup_power2_divisions:8",
    "max_split_size_mb:128,max_non_split_rounding_mb:64",
    "large_segment_size_mb:64",
)
"""Settings that are tried besides the recorded ones: each key with common values, and useful combinations."""

Progress = Callable[[int, int], None]
"""Function of the replays that are done and of all. An exception in it ends the sweep."""


@dataclass(frozen=True)
class Row:
    """A line of a sweep."""

    prediction: Prediction
    smallest_device_bytes: int | None
    """Smallest device on which the run survives, with everything beside PyTorch as far as known; None: it fails on any
    device."""
    uncertainty_bytes: int
    """Uncertainty of the smallest device: the width of the search, and the spread of equally plausible replays."""
    saved_bytes: int | None
    """Device memory saved against the recorded settings."""
    risk: Risk
    recorded: bool
    """True for the settings of the recorded run."""
    expandable: bool = False
    """True if they have expandable segments."""
    is_bounded: bool = True
    """True if the reserved memory has a bound (Scenario.is_bounded)."""

    @property
    def conf(self) -> str:
        return self.prediction.conf

    @property
    def out_of_memory(self) -> bool:
        """Whether the run fails on the device of the sweep."""
        return self.prediction.out_of_memory

    @property
    def reserved_bytes(self) -> int:
        """Peak reserved on a device with room. It is an upper bound if the start of the run is unknown, except with expandable
        segments, where earlier memory hardly matters (docs/fragmentation.md)."""
        prediction = self.prediction
        if prediction.band is None or self.expandable:
            return prediction.uncapped_peak_reserved_bytes
        return max(prediction.band)


@dataclass(frozen=True)
class Sweep:
    """Settings side by side, the recorded ones first."""

    rows: list[Row]
    residual: Residual
    recommendation: Recommendation
    device_bytes: int | None
    """Bytes of the whole device in the replay; None: unknown, never full."""
    outside_bytes: int | None
    """Device bytes outside PyTorch; None: unknown, taken as 0."""
    notes: list[str]

    @property
    def recommended(self) -> Row | None:
        """The setting to change to; None: keep the recorded ones. All pages and commands use this answer."""
        return next((row for row in self.rows[1:] if row.conf == self.recommendation.conf), None)

    def in_view_of(self, run_peak_bytes: int | None) -> Sweep:
        """Return the sweep for a run that reserved up to ``run_peak_bytes`` on any rank, perhaps outside of the recording."""
        here = self.rows[0].reserved_bytes
        missing = without_evidence(LEAST_EVENTS, here, run_peak_bytes)
        if missing is None or run_peak_bytes is None:
            return self
        note = (
            f"Outside this window the run reserved up to {amount(run_peak_bytes)}, {amount(run_peak_bytes - here)} more. "
            "The predictions do not cover that."
        )
        missing = replace(missing, variable=self.recommendation.variable)
        return replace(self, recommendation=missing, notes=[*self.notes, note])


def predict(trace: Trace, conf: str, *, device_bytes: int | None = None) -> Prediction:
    """Predict the run under other settings, on its own device or on one of ``device_bytes``.

    Raises BadSetting where PyTorch would refuse ``conf``; ValueError where the run used another allocator.
    """
    return Scenario(trace, conf).prediction(target_device_of(trace, device_bytes))


def smallest_device(trace: Trace, conf: str) -> int | None:
    """Return the smallest device, in bytes, on which the run fits; None if it fits on none. Raises as predict."""
    case = Scenario(trace, conf)
    return case.smallest_device(target_device_of(trace))[0]


def sweep(
    trace: Trace,
    confs: Sequence[str] = DEFAULT_SWEEP,
    *,
    device_bytes: int | None = None,
    run_peak_bytes: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """Predict all settings, the recorded ones first, on as many threads as there are cores. Raises as predict.

    run_peak_bytes   peak reserved of the whole run, which may be outside the recording
    """
    tell = progress or (lambda done, total: None)
    in_force = trace.parsed_settings[0].text
    # settings that the program changed late are another scenario when they apply to the whole recording
    others = [conf for conf in dict.fromkeys(confs) if conf != in_force or trace.earlier_settings is not None]
    total = 2 + len(
        others
    )  # the first replay checks that the recording is reproduced, and takes as long as several others
    tell(0, total)
    residual = check(trace)
    tell(1, total)
    recorded = Scenario(trace, in_force, recorded=True)
    cases = [recorded, *(Scenario(trace, conf) for conf in others)]
    device = target_device_of(trace, device_bytes)
    rows: list[Row] = []
    with _workers(len(cases)) as pool:
        for row in pool.map(lambda case: _row(case, device, recorded=case is recorded), cases):
            rows.append(row)
            tell(1 + len(rows), total)
    base = rows[0].smallest_device_bytes
    rows = [
        row
        if base is None or row.smallest_device_bytes is None
        else replace(row, saved_bytes=base - row.smallest_device_bytes)
        for row in rows
    ]
    few = without_evidence(len(trace.events), rows[0].reserved_bytes, None)
    advice = few or recommend(rows[0], rows[1:], device.total_bytes)
    advice = replace(advice, variable=allocator_variable(trace.torch))
    made = Sweep(rows, residual, advice, device.total_bytes, device.outside_bytes, _notes(trace, device))
    return made.in_view_of(run_peak_bytes)


def _row(case: Scenario, device: TargetDevice, *, recorded: bool) -> Row:
    smallest, uncertainty = case.smallest_device(device)
    return Row(
        prediction=case.prediction(device),
        smallest_device_bytes=smallest,
        uncertainty_bytes=uncertainty,
        saved_bytes=None,
        risk=risk_of(case.settings),
        recorded=recorded,
        expandable=case.settings.expandable_segments,
        is_bounded=case.is_bounded,
    )


@contextmanager
def _workers(most: int) -> Iterator[ThreadPoolExecutor]:
    """Run replays in threads, as they release the interpreter lock. Waiting ones do not start once the caller stops."""
    pool = ThreadPoolExecutor(min(most, os.cpu_count() or 1), "vramscope-whatif")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _notes(trace: Trace, device: TargetDevice) -> list[str]:
    derivation = derivation_of(trace)
    notes = [*trace.notes, *derivation.notes]
    if derivation.ended_by_failure:
        notes.append("The recorded run ended there. What would have followed is unknown and could need more.")
    in_force = trace.parsed_settings[0].text
    if in_force != trace.settings:
        notes.append(
            f"The last settings were {trace.settings or 'the default ones'!r}; together with earlier ones, "
            f"{in_force!r} was in effect."
        )
    if derivation.unseen_empty_caches is None:
        notes.append("It is unknown whether empty_cache() was called without an effect; it is assumed that it was not.")
    if device.outside_bytes is None:
        notes.append(
            "The memory of the CUDA context and of other processes is unknown and comes on top of each figure."
        )
    if beginning_of(trace) is not None:
        notes.append("The peaks cover the run from its beginning to the end of the recording.")
    elif (trace.start is not None and len(trace.start.segments)) or (trace.lives.alloc_event < 0).any():
        notes.append("The peaks cover the recording only, not what the run did before it.")
    return notes
