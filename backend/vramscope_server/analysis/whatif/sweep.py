"""What if: a trace replayed under other allocator settings, and the smallest card on which the run survives with each.

The uncapped peak ranks settings wrongly: what is reserved where there is room may be given back where there is none. So
settings are ranked by the smallest card, found by bisection over replays, and both numbers are shown.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from vramscope_server.analysis.history.trace import Trace
from vramscope_server.analysis.simulator.profile import profile_of
from vramscope_server.analysis.simulator.program import FREE_REQUESTED, Program
from vramscope_server.analysis.simulator.replay import UNLIMITED, AddressOrder, Hazard, Replay, replay
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.whatif.card import Card, card_of
from vramscope_server.analysis.whatif.courses import Course, courses_of
from vramscope_server.analysis.whatif.exact_replay import USUAL_TOTAL_BYTES, Residual, check
from vramscope_server.analysis.whatif.program_of import derivation_of
from vramscope_server.analysis.whatif.recommendation import Recommendation, Risk, recommend, risk_of

__all__ = ["DEFAULT_SWEEP", "Prediction", "Residual", "Row", "Sweep", "check", "predict", "smallest_card", "sweep"]

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
"""Beside the recorded settings: each key in the sizes that people use, and the combinations that make sense."""

_STEP_BYTES: Final = 2 << 20
_STEPS_OF_CARD: Final = 512
"""The smallest card is found to a 512th of itself, or to 2 MiB: nobody chooses between cards that are nearer."""
_ORDERS: Final[tuple[AddressOrder, ...]] = ("rising", "falling", "shuffled")
"""in which cudaMalloc may give addresses: up to PyTorch 2.11 that decides between free blocks of one size"""
_lock: Final = threading.Lock()

Progress = Callable[[int, int], None]
"""(done, total) replays of settings; may raise, to stop"""


@dataclass(frozen=True)
class Prediction:
    """What the run would have reserved under these settings."""

    conf: str
    peak_reserved_bytes: int
    """on the card in question; up to where memory runs out, if it does"""
    uncapped_peak_reserved_bytes: int
    """where the card is never full"""
    peak_allocated_bytes: int
    retries: int
    """times that all cached memory had to be given back: each waits for the GPU"""
    device_allocs: int
    """calls of cudaMalloc, or mappings of an expandable segment; each costs some 100 µs or more on a card"""
    out_of_memory: bool
    out_of_memory_at_event: int | None
    """event of the trace; None: it does not run out, or did so before the first event"""
    band: tuple[int, int] | None
    """of the uncapped peak, where it cannot be exact; None: it is"""
    notes: list[str]


@dataclass(frozen=True)
class Row:
    """A line of a sweep."""

    prediction: Prediction
    smallest_card_bytes: int | None
    """on which the run survives, with all that is beside PyTorch on it as far as that is known; None: it stops on any card"""
    uncertainty_bytes: int
    """the smallest card's: the width to which it was searched, and half of what the addresses of segments may make of it"""
    saved_bytes: int | None
    """of the card, against the recorded settings"""
    risk: Risk
    recorded: bool
    """these are the settings of the recorded run"""
    expandable: bool = False
    """they have expandable segments"""

    @property
    def conf(self) -> str:
        return self.prediction.conf

    @property
    def reserved_bytes(self) -> int:
        """Where there is room. Of a run whose beginning is not known at most; but for expandable segments, where what ran before
        it hardly matters (docs/fragmentation.md)."""
        told = self.prediction
        if told.band is None or self.expandable:
            return told.uncapped_peak_reserved_bytes
        return max(told.band)


@dataclass(frozen=True)
class Sweep:
    """Settings side by side, the recorded ones first."""

    rows: list[Row]
    residual: Residual
    recommendation: Recommendation
    device_bytes: int | None
    """the whole card that was replayed; None: not known, never full"""
    outside_bytes: int | None
    """of it, not PyTorch's; None: not known, and taken as nothing"""
    notes: list[str]


def predict(trace: Trace, conf: str, *, device_bytes: int | None = None) -> Prediction:
    """The run under other settings, on its own card or on one of ``device_bytes``.

    Raises BadSetting where PyTorch would refuse ``conf``; ValueError where the run used another allocator.
    """
    return _Case(trace, conf).prediction(card_of(trace, device_bytes))


def smallest_card(trace: Trace, conf: str) -> int | None:
    """The smallest card, in bytes, on which the run survives with these settings; None: there is none. Raises as predict."""
    case = _Case(trace, conf)
    return case.smallest_card(card_of(trace))[0]


def sweep(
    trace: Trace,
    confs: Sequence[str] = DEFAULT_SWEEP,
    *,
    device_bytes: int | None = None,
    progress: Progress | None = None,
) -> Sweep:
    """All settings, and the recorded ones first, on as many threads as there are cores. Raises as predict."""
    tell = progress or (lambda done, total: None)
    in_force = trace.parsed_settings[0].text
    others = [conf for conf in dict.fromkeys(confs) if conf != in_force]
    total = 2 + len(others)  # first the replay that must give what was recorded, which takes as long as some others
    tell(0, total)
    residual = check(trace)
    tell(1, total)
    recorded = _Case(trace, in_force, recorded=True)
    cases = [recorded, *(_Case(trace, conf) for conf in others)]
    card = card_of(trace, device_bytes)
    rows: list[Row] = []
    with _workers(len(cases)) as pool:
        for row in pool.map(lambda case: case.row(card, recorded=case is recorded), cases):
            rows.append(row)
            tell(1 + len(rows), total)
    base = rows[0].smallest_card_bytes
    rows = [
        row
        if base is None or row.smallest_card_bytes is None
        else replace(row, saved_bytes=base - row.smallest_card_bytes)
        for row in rows
    ]
    return Sweep(
        rows, residual, recommend(rows[0], rows[1:]), card.total_bytes, card.outside_bytes, _notes(trace, card)
    )


@contextmanager
def _workers(most: int) -> Iterator[ThreadPoolExecutor]:
    """Replays let go of the interpreter's lock. What waits is not begun when the caller stops."""
    pool = ThreadPoolExecutor(min(most, os.cpu_count() or 1), "vramscope-whatif")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class _Case:
    """One trace under one setting."""

    def __init__(self, trace: Trace, conf: str, *, recorded: bool = False) -> None:
        self.trace, self.conf = trace, conf
        self.profile, other = profile_of(trace.torch)
        own, unknown = trace.parsed_settings
        self.settings = own if recorded else AllocatorSettings.parse(conf, self.profile)
        with _lock:  # made once for all cases, by the one that comes first
            self.told = derivation_of(trace)
            self.courses = courses_of(trace, own=replace(self.settings, text="") == replace(own, text=""))
        self.notes = [note for note in (other and f"{other}.", unknown, self.courses.words) if note]
        self.orders: tuple[AddressOrder, ...] = _ORDERS if self.profile.ties == "address" else _ORDERS[:1]

    def run(self, card: Card, course: Course, order: AddressOrder = "rising") -> Replay:
        return replay(
            course.program,
            self.settings,
            profile=self.profile,
            device_bytes=card.room_bytes,
            device_total_bytes=card.total_bytes or (None if card.room_bytes < UNLIMITED else USUAL_TOTAL_BYTES),
            limit_bytes=card.limit_bytes,
            initial=course.initial,
            address_order=order,
        )

    @cached_property
    def free_card(self) -> Card:
        """The recorded one, but never full."""
        return replace(card_of(self.trace), limit_fraction=None, room_bytes=UNLIMITED)

    @cached_property
    def uncapped(self) -> Replay:
        return self.run(self.free_card, self.courses.predicted)

    @cached_property
    def band(self) -> tuple[int, int] | None:
        """Of the uncapped peak; None where it is exact.

        Addresses that cudaMalloc may give are tried (up to PyTorch 2.11). Of a run whose beginning is not known, no less
        can be reserved than was in use; and at most what any layout of the beginning gives, laid out anew or as it lay, and
        beside it what laying it out anew misses under the recorded settings, for which the truth is known. What was left behind
        is in the layout as it lay already: it comes to that again only where pieces of it can be of no use to what follows.
        """
        courses = self.courses
        peaks = [self.uncapped.peak_reserved_bytes]
        peaks += [self.run(self.free_card, courses.predicted, order).peak_reserved_bytes for order in self.orders[1:]]
        if courses.kept is not None:
            peaks += [self.run(self.free_card, course).peak_reserved_bytes for course in courses.others]
            kept = self.run(self.free_card, courses.kept).peak_reserved_bytes
            peaks += [self.uncapped.peak_active_bytes, max(peaks) + courses.missed_bytes]
            peaks += [kept if self.settings.expandable_segments else kept + courses.missed_bytes]
        return (min(peaks), max(peaks)) if len(peaks) > 1 else None

    def prediction(self, card: Card) -> Prediction:
        uncapped = done = self.uncapped
        # A card far larger than what is reserved is never full either.
        if card.limit_bytes is not None or uncapped.peak_reserved_bytes * 1.1 + (64 << 20) > card.room_bytes:
            # On another card the run would have been from its first allocation on: what was there would lie otherwise.
            own_card = card == card_of(self.trace)
            done = self.run(card, self.courses.predicted if own_card else self.courses.afresh)
        failed = done.out_of_memory_at
        event = int(self.told.program.event[failed]) if failed >= 0 else -1
        return Prediction(
            conf=self.conf,
            peak_reserved_bytes=done.peak_reserved_bytes,
            uncapped_peak_reserved_bytes=uncapped.peak_reserved_bytes,
            peak_allocated_bytes=done.peak_allocated_bytes,
            retries=done.retries,
            device_allocs=done.device_allocs,
            out_of_memory=failed >= 0,
            out_of_memory_at_event=event if event >= 0 else None,
            band=self.band,
            notes=[*self.notes, *self._said_of(done, card)],
        )

    def smallest_card(self, card: Card) -> tuple[int | None, int]:
        """(bytes, the width to which it was searched). By bisection between what was in use and what was reserved at most.

        With less memory a run may in rare cases do better than with more; then this is one such border, not the lowest.
        """
        most = (
            self.uncapped
            if self.courses.afresh is self.courses.predicted
            else self.run(self.free_card, self.courses.afresh)
        )
        if stopped(most, self.told.program):
            return None, 0
        share = min(self.settings.per_process_memory_fraction, card.limit_fraction or 1.0)
        outside = card.outside_bytes or 0
        low = outside + _whole(most.peak_active_bytes) - _STEP_BYTES
        high = _whole(max(outside + most.peak_reserved_bytes, most.peak_reserved_bytes / max(share, 1e-6)))
        width = max(_STEP_BYTES, high // _STEPS_OF_CARD)
        while not self._survives(card.of(high)):
            if high > 4 * (outside + most.peak_reserved_bytes / max(share, 1e-6)):
                return None, 0
            low, high = high, _whole(high * 1.05 + width)
        while high - low > width:
            middle = _whole((low + high) / 2)
            if middle >= high:
                break
            if self._survives(card.of(middle)):
                high = middle
            else:
                low = middle
        return high, high - low

    def row(self, card: Card, *, recorded: bool) -> Row:
        smallest, width = self.smallest_card(card)
        low, high = (0, 0) if self.courses.kept is not None else self.band or (0, 0)
        return Row(
            prediction=self.prediction(card),
            smallest_card_bytes=smallest,
            uncertainty_bytes=width + (high - low) // 2,
            saved_bytes=None,
            risk=risk_of(self.settings),
            recorded=recorded,
            expandable=self.settings.expandable_segments,
        )

    def _survives(self, card: Card) -> bool:
        done = self.run(card, self.courses.afresh)
        return done.out_of_memory_at < 0 and not stopped(done, self.told.program)

    def _said_of(self, done: Replay, card: Card) -> Iterator[str]:
        settings = self.settings
        if card.total_bytes is None and settings.per_process_memory_fraction < 1:
            yield "per_process_memory_fraction is a part of the card, whose size is not known here: taken as no limit."
        limited = card.total_bytes is not None and (
            settings.per_process_memory_fraction < 1 or card.limit_fraction is not None
        )
        if settings.garbage_collection_threshold and not limited:
            yield "garbage_collection_threshold does nothing without a limit (per_process_memory_fraction below 1)."
        if done.hazards & Hazard.UNBOUNDED_GROWTH:
            yield f"Free memory was passed over {done.passed_over:,} times because of max_split_size_mb: what is reserved grows on."
        if stopped(done, self.told.program):
            yield f"PyTorch would stop with an error of its own under these settings: {done.hazards.name}."
        deferred = int(np.count_nonzero(self.told.program.op == FREE_REQUESTED))
        if deferred:
            yield f"{deferred:,} blocks waited for another stream; when that was done with them is taken from the recorded run."


def stopped(done: Replay, program: Program) -> bool:
    """Whether a replay ended before the program did, and not for lack of memory."""
    return done.out_of_memory_at < 0 and done.operations < len(program)


def _whole(size: float) -> int:
    """Rounded up to steps in which cards are compared."""
    return -int(-size // _STEP_BYTES) * _STEP_BYTES


def _notes(trace: Trace, card: Card) -> list[str]:
    told = derivation_of(trace)
    notes = [*trace.notes, *told.notes]
    if told.ended_by_failure:
        notes.append(
            "The recorded run ended there: what would have come after is not in the history, and could need more."
        )
    in_force = trace.parsed_settings[0].text
    if in_force != trace.settings:
        notes.append(
            f"The settings given last were {trace.settings or 'the default ones'!r}; with what earlier ones left, in force was "
            f"{in_force!r}."
        )
    if trace.lost_events:
        notes.append(f"{trace.lost_events:,} events are missing in between.")
    if card.outside_bytes is None:
        notes.append(
            "What the CUDA context and other processes take of a card is not known here, and comes on top of each figure."
        )
    if (trace.start is not None and len(trace.start.segments)) or (trace.lives.alloc_event < 0).any():
        notes.append("The peaks are those of the recorded window; what the run did before it is not in it.")
    return notes
