"""Anatomy of a recording: the purpose of its memory, and advice."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from fastapi import APIRouter, Request, Response

from vramscope.protocol.profile import Profile
from vramscope_server.analysis.advice.all_rules import advise
from vramscope_server.analysis.advice.facts import Advice, StepFacts
from vramscope_server.analysis.ownership.summary import summary
from vramscope_server.answers.anatomy import AdviceRow, AnatomyAnswer
from vramscope_server.answers.run_detail import Technique
from vramscope_server.api.fragmentation import Event
from vramscope_server.api.profiles import newest_profile
from vramscope_server.api.recording_request import open_recording, readable, require_event
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.recording_cache import OpenRecording
from vramscope_server.store.artifacts import StoredArtifact
from vramscope_server.store.rank_summary import RankSummary
from vramscope_server.store.run_queries import UnknownRun, find_run, summary_of_rank

router = APIRouter(tags=["recordings"])

COARSE_BYTES: Final = 64 << 20


@router.get(
    "/recordings/{recording}/anatomy",
    summary="Purpose of the memory, and advice",
    responses=answers_with(AnatomyAnswer),
)
def get_anatomy(request: Request, recording: str, event: Event = None) -> Response:
    """Categories, phases and modules after an event, and advice about the peak. By default the event is that of the
    highest allocated memory.
    """
    stored, opened = open_recording(request, recording)
    with readable(stored):
        moment = None if event is None else require_event(opened, event)
        summarized = opened.once(("anatomy", moment), lambda: summary(opened.trace, moment))
    advice = advice_rows(request, stored, opened)
    anatomy: AnatomyAnswer = {"recording": stored.id, **summarized, "advice": advice}
    return answer(anatomy)


def advice_rows(request: Request, stored: StoredArtifact, opened: OpenRecording) -> list[AdviceRow]:
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
        return opened.once(key, ComputedOnce).get(
            lambda: [_advice_row(one) for one in advise(facts_of(opened, run, profile))]
        )


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
    """A result that takes seconds (it includes a replay): computed once, while other views of the recording are answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[AdviceRow] | None = None

    def get(self, make: Callable[[], list[AdviceRow]]) -> list[AdviceRow]:
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
