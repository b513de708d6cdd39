"""The replay of a trace under its recorded settings. It must reproduce the recording, or no what-if can be trusted."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.simulator.initial_state import InitialState
from vramscope_server.analysis.simulator.program import ALLOC, EMPTY_CACHE, EMPTY_POOL, POOL_FREEABLE, Program
from vramscope_server.analysis.simulator.replay import STATISTICS, UNLIMITED, replay
from vramscope_server.analysis.simulator.settings import AllocatorSettings, NotReplayable
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.lifetimes import SMALL_SEGMENT_BYTES
from vramscope_server.analysis.trace.trace import Trace, reserved_after
from vramscope_server.analysis.trace.types import SEGMENT_ALLOC, SEGMENT_MAP, SEGMENT_UNMAP
from vramscope_server.analysis.whatif.program import derivation_of, initial_of

USUAL_TOTAL_BYTES: Final = 80 << 30
"""Device size for files that do not have one. Only address ranges of expandable segments depend on it."""

MOST_REPLAYS: Final = 300
MOST_OPERATIONS: Final = 5_000_000
"""Maximum number of operations that are replayed again to learn the ages of segments: about two seconds."""


@dataclass(frozen=True)
class Residual:
    """Difference of the replay under the recorded settings to the recording. 0, 0 and None: equal to the byte."""

    peak_reserved_bytes: int
    end_reserved_bytes: int
    first_different_event: int | None
    """First allocation that differs in its address, or in the reserved memory after it."""
    events: int
    """Number of compared events."""
    words: str

    @property
    def exact(self) -> bool:
        return self.first_different_event is None and not self.peak_reserved_bytes and not self.end_reserved_bytes


@dataclass(frozen=True)
class ExactReplay:
    """Result of the replay, and the initial layout with the ages of segments that it revealed."""

    residual: Residual
    initial: InitialState | None
    """State at the start, with the segments' age order as learned from the recording; None: nothing was allocated."""
    device_bytes: int
    """Bytes available to the process in the replay; UNLIMITED if it never met a bound."""


def check(trace: Trace) -> Residual:
    """Return the residual of a replay with the recorded settings and addresses. Takes about 1 µs for each event.

    Raises ValueError if the run used another allocator than PyTorch's native one.
    """
    return exact_replay(trace).residual


def earlier_of(trace: Trace, program: Program) -> tuple[int, AllocatorSettings] | None:
    """Return a position and the settings in force before it, if the program changed its settings; else None."""
    if trace.earlier_settings is None:
        return None
    until, settings = trace.earlier_settings
    after = np.flatnonzero(program.event >= until)
    return int(after[0]) if len(after) else len(program), settings


@lru_cache(maxsize=4)
def exact_replay(trace: Trace) -> ExactReplay:
    """Return the replay under the recorded settings. Cached for the newest traces.

    Of two free blocks of one size, PyTorch 2.13 takes the one in the older segment. Snapshots do not have the age of segments.
    If the replay takes another segment than the run did, the run's segment is older, and the replay starts again.
    """
    settings, unknown = trace.parsed_settings
    if trace.backend != "native" or settings.backend != "native":
        backend = settings.backend if trace.backend == "native" else trace.backend
        raise NotReplayable(f"backend {backend}: only PyTorch's native allocator can be replayed")
    if not len(trace.events):
        raise NotReplayable("there are no events to replay")
    profile, other = profile_of(trace.torch)
    derivation, recorded = derivation_of(trace), reserved_after(trace)
    program = derivation.program
    full = len(derivation.releases) or len(
        derivation.failed
    )  # otherwise it was never full, and its size does not matter
    device_bytes = derivation.room_low_bytes if full else UNLIMITED
    initial = initial_of(trace) if len(trace.beginning.segments) else None
    ages = None if initial is None else _Ages(initial, _first_guess(trace))
    late = program.event >= 0
    releases = np.isin(program.op, (EMPTY_CACHE, EMPTY_POOL, POOL_FREEABLE))
    allocs = late & (program.op == ALLOC) & ~np.isin(program.event, derivation.failed)
    addresses = recorded_addresses(trace)
    for left in range(min(MOST_REPLAYS, 2 + MOST_OPERATIONS // max(len(program), 1)), 0, -1):
        done = replay(
            program,
            settings,
            profile=profile,
            device_bytes=device_bytes,
            device_total_bytes=trace.device_total_bytes or USUAL_TOTAL_BYTES,
            limit_bytes=trace.limit_bytes,
            initial=initial if ages is None or initial is None else initial._replace(segment_age=ages.age),
            segment_addresses=addresses,
            readings=True,
            statistics=STATISTICS.index("reserved_bytes")
            + 1,  # keeping all of them would take more memory than anything else in a what-if
            stop_at_oom=False,
            earlier=earlier_of(trace, program),
        )
        assert done.readings is not None
        moved = allocs & (done.readings.address != trace.events.address[program.event])
        other_size = late & ~releases & (done.readings.reserved_bytes != recorded[program.event + 1])
        wrong = np.flatnonzero(moved | other_size)
        if ages is None or not len(wrong) or not moved[wrong[0]] or left == 1:
            break
        at = wrong[0]
        if not ages.learn(int(trace.events.address[program.event[at]]), int(done.readings.address[at])):
            break
    first = int(program.event[wrong[0]]) if len(wrong) else None
    peak = done.peak_reserved_bytes - int(recorded.max())
    end = done.end["reserved_bytes"] - int(recorded[-1])
    compared = int(np.count_nonzero(late))
    words = [_words(trace, peak, end, first, compared), unknown, other and f"{other}."]
    return ExactReplay(
        Residual(peak, end, first, compared, " ".join(filter(None, words))),
        initial if ages is None or initial is None else initial._replace(segment_age=ages.age),
        device_bytes,
    )


def _first_guess(trace: Trace) -> IntArray:
    """Guess the ages of the initial segments by address, in the direction of the segments in the history."""
    count = len(trace.beginning.segments)
    made = trace.events.address[np.isin(trace.events.action, (SEGMENT_ALLOC, SEGMENT_MAP))]
    falling = np.count_nonzero(np.diff(made) < 0) > len(made) / 2
    return np.arange(count)[::-1].copy() if falling else np.arange(count)


class _Ages:
    """Order in which the initial segments were made: first a guess, then corrected by replays."""

    def __init__(self, initial: InitialState, guess: IntArray) -> None:
        self.low, self.high = initial.segment_address, initial.segment_address + initial.segment_size_bytes
        self.guess = self.age = guess
        self.younger: dict[int, set[int]] = {}

    def learn(self, took: int, would_take: int) -> bool:
        """Note that the segment at ``took`` is older than that at ``would_take``. Returns False if that is nothing new."""
        older, younger = (int(np.searchsorted(self.low, at, side="right")) - 1 for at in (took, would_take))
        if min(older, younger) < 0 or took >= self.high[older] or would_take >= self.high[younger]:
            return False
        if older == younger or younger in self.younger.get(older, ()):
            return False
        self.younger.setdefault(older, set()).add(younger)
        return self._sort()

    def _sort(self) -> bool:
        """Sort by the known pairs, then by the guess. Returns False if the known pairs contradict each other."""
        waits_for = np.zeros(len(self.guess), np.int64)
        for others in self.younger.values():
            for one in others:
                waits_for[one] += 1
        ready = [(int(self.guess[one]), int(one)) for one in np.flatnonzero(waits_for == 0)]
        heapq.heapify(ready)
        made = np.full(len(self.guess), -1)
        for age in range(len(made)):
            if not ready:
                return False
            _, segment = heapq.heappop(ready)
            made[segment] = age
            for one in self.younger.get(segment, ()):
                waits_for[one] -= 1
                if not waits_for[one]:
                    heapq.heappush(ready, (int(self.guess[one]), one))
        self.age = made
        return True


def _words(trace: Trace, peak: int, end: int, first: int | None, compared: int) -> str:
    if not compared:
        return "The recording has no allocation and no free: there is nothing to compare."
    if first is None and not peak and not end:
        return f"A replay under the recorded settings reproduces all {compared:,} operations with equal addresses."
    where = "" if first is None else f" from event {first:,} ({ACTIONS[trace.events.action[first]]}) on"
    why = "" if trace.start is not None or not len(trace.beginning.segments) else (
        " The recording starts mid-run, and what was free then is unknown."
    )  # fmt: skip
    if trace.parsed_settings[0].garbage_collection_threshold and trace.limit_bytes is None:
        why += " garbage_collection_threshold depends on a limit, which the file does not contain."
    return f"A replay under the recorded settings differs{where}: peak reserved {peak:+,} bytes.{why}"


@lru_cache(maxsize=4)
def recorded_addresses(trace: Trace) -> IntArray:
    """Return the addresses of new segments in their order. An expandable one begins where it was mapped first."""
    events = trace.events
    changes = np.flatnonzero((events.action >= SEGMENT_ALLOC) & (events.action <= SEGMENT_UNMAP))
    there = trace.beginning.segments
    mapped: dict[tuple[int, int, int], int] = {}
    """Mapped bytes of the expandable segment of a (stream, pool, large). A segment without any is returned whole."""
    owner: dict[int, tuple[int, int, int]] = {}
    for at in np.flatnonzero(there.expandable):
        key = int(there.stream[at]), int(there.pool[at]), int(there.large[at])
        mapped[key] = mapped.get(key, 0) + int(there.size_bytes[at])
        owner.setdefault(int(there.address[at]), key)
    addresses = []
    for at in changes:
        kind, address, size = int(events.action[at]), int(events.address[at]), int(events.size_bytes[at])
        if kind == SEGMENT_ALLOC:
            addresses.append(address)
        elif kind == SEGMENT_MAP:
            key = int(events.stream[at]), int(events.pool[at]), int(size > SMALL_SEGMENT_BYTES)
            if not mapped.get(key):
                addresses.append(address)
                owner[address] = key
            mapped[key] = mapped.get(key, 0) + size
        elif kind == SEGMENT_UNMAP and owner:
            begin = max((one for one in owner if one <= address), default=None)
            if begin is not None:
                mapped[owner[begin]] -= size
    return np.array(addresses, np.int64)
