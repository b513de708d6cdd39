"""Anatomy of a recording: the purpose of its memory, and advice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

from fastapi import APIRouter, Query, Request, Response

from vramscope.protocol.profile import Profile
from vramscope_server.analysis.advice.all_rules import advise, ordered
from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.advice.rules import fragmentation
from vramscope_server.analysis.ownership.summary import summary
from vramscope_server.answers.anatomy import AdviceRow, AnatomyAnswer
from vramscope_server.answers.run_detail import Technique
from vramscope_server.api.fragmentation import Event
from vramscope_server.api.profiles import newest_profile
from vramscope_server.api.recording_request import open_recording, readable, require_event
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.api.whatif import recorded_sweep
from vramscope_server.recording_cache import OpenRecording
from vramscope_server.store.artifacts import StoredArtifact
from vramscope_server.store.rank_summary import RankSummary
from vramscope_server.store.run_queries import UnknownRun, find_run, summary_of_rank

router = APIRouter(tags=["recordings"])

COARSE_BYTES: Final = 64 << 20
MOST_WAIT_SECONDS: Final = 20.0
Wait = Annotated[
    float,
    Query(ge=0, le=MOST_WAIT_SECONDS, description="Seconds to wait for the replays under other allocator settings"),
]


@router.get(
    "/recordings/{recording}/anatomy",
    summary="Purpose of the memory, and advice",
    responses=answers_with(AnatomyAnswer),
)
def get_anatomy(
    request: Request, recording: str, event: Event = None, wait_seconds: Wait = MOST_WAIT_SECONDS
) -> Response:
    """Categories, phases and modules after an event, and advice about the peak. By default the event is that of the
    highest allocated memory. With ``pending``, ask again: advice on the allocator settings may follow.
    """
    stored, opened = open_recording(request, recording)
    with readable(stored):
        moment = None if event is None else require_event(opened, event)
        summarized = opened.once(("anatomy", moment), lambda: summary(opened.trace, moment))
    found = advice_on(request, stored, opened, wait_seconds)
    anatomy: AnatomyAnswer = {
        "recording": stored.id,
        **summarized,
        "advice": [_advice_row(one) for one in found.advice],
        "pending": found.pending,
    }
    return answer(anatomy)


class AdviceOnRecording(NamedTuple):
    """Advice about the peak of a recording."""

    advice: list[Advice]
    pending: bool
    """True while the recording is replayed under other allocator settings, about which advice may follow."""


def advice_on(
    request: Request, stored: StoredArtifact, opened: OpenRecording, wait_seconds: float = MOST_WAIT_SECONDS
) -> AdviceOnRecording:
    """Advice about the peak of a recording, computed once. It may take seconds. Raises BadRecording."""
    run = known_run(request, stored.run_id, stored.rank)
    profile = newest_profile(request, stored.run_id, stored.rank)
    about_bytes = (run.peak_allocated_bytes or 0) // COARSE_BYTES  # rises slightly while it trains
    key = (
        "advice",
        str(run.techniques),
        about_bytes,
        (run.phase_peaks_bytes.get("eval") or 0) // COARSE_BYTES,
        profile and (profile.first_step, profile.reason),
    )
    with readable(stored):
        found = opened.once(key, ComputedOnce).get(lambda: advise(facts_of(opened, run, profile)))
    sweep, pending = recorded_sweep(request, stored, opened, wait_seconds)
    on_settings = fragmentation.advise(StepFacts(opened.trace, sweep=sweep))
    return AdviceOnRecording(ordered([*found, *filter(None, [on_settings])]), pending)


def _advice_row(advice: Advice) -> AdviceRow:
    return {
        "rule": advice.rule,
        "sentence": advice.sentence,
        "saves_bytes": advice.saves_bytes,
        "seconds": advice.seconds,
        "evidence": advice.evidence,
        "source": advice.source,
        "file": advice.file,
        "line": advice.line,
        "module": advice.module,
    }


class ComputedOnce:
    """A result that takes seconds: computed once, while other views of the recording are answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[Advice] | None = None

    def get(self, make: Callable[[], list[Advice]]) -> list[Advice]:
        """Result of ``make``; a second caller waits for the first."""
        with self._lock:
            if self._made is None:
                self._made = make()
            return self._made


def facts_of(opened: OpenRecording, run: KnownRun, profile: Profile | None = None) -> StepFacts:
    """Facts of a recording for the rules of advice."""
    return StepFacts(
        opened.trace,
        profile=profile,
        techniques=run.techniques,
        run_peak_bytes=run.peak_allocated_bytes,
        phase_peaks_bytes=run.phase_peaks_bytes,
    )


class KnownRun(NamedTuple):
    """Facts of a recording's run for advice."""

    techniques: list[Technique]
    peak_allocated_bytes: int | None
    """Highest allocated memory of the steps of the rank that recorded."""
    phase_peaks_bytes: dict[str, int]
    """Highest allocated memory in each phase of these steps."""


def known_run(request: Request, run_id: str | None, rank: int) -> KnownRun:
    """Facts of the run; empty for a recording without a run."""
    if run_id:
        with reader(request) as connection, contextlib.suppress(UnknownRun):
            run = find_run(connection, run_id)
            known = summary_of_rank(connection, run, rank) or RankSummary()
            return KnownRun(run.techniques or [], known.step_peak_bytes, known.phase_peaks_bytes)
    return KnownRun([], None, {})
