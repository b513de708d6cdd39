"""What a recording's memory is for at its peak, and what would make it less."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fastapi import APIRouter, Request, Response

from vramscope.protocol.profile import Profile
from vramscope_server.analysis.advice.all_rules import advise
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.ownership.summary import summary
from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.api.dependencies import open_recording, readable, the_event
from vramscope_server.api.fragmentation import Event
from vramscope_server.api.profiles import newest_profile
from vramscope_server.api.responses import answer
from vramscope_server.api.run_window import reader
from vramscope_server.api.schemas import answers_with
from vramscope_server.recording_cache import Opened
from vramscope_server.services import House
from vramscope_server.store.run_queries import UnknownRun, find_run, summary_of_rank
from vramscope_server.store.summary import RankSummary

router = APIRouter(tags=["recordings"])

COARSE_BYTES: Final = 64 << 20


@router.get(
    "/recordings/{recording}/anatomy",
    summary="What the memory is for, and what would make it less",
    responses=answers_with(AnatomyAnswer),
)
def get_anatomy(request: Request, recording: str, event: Event = None) -> Response:
    """Categories, phases and modules at a moment (none given: the peak of allocated bytes), what is unknown, and advice."""
    stored, opened = open_recording(request, recording)
    run = known_run(request.app.state.house, stored.run_id, stored.rank)
    profile = newest_profile(request.app.state.house, stored.run_id, stored.rank)
    with readable(stored):
        moment = None if event is None else the_event(opened, event)
        told = opened.once(("anatomy", moment), lambda: summary(opened.trace, moment))
        about_bytes = (run.peak_allocated_bytes or 0) // COARSE_BYTES  # while it trains it rises a little now and then
        key = (
            "advice",
            str(run.techniques),
            about_bytes,
            (run.phase_peaks_bytes.get("eval") or 0) // COARSE_BYTES,
            profile and (profile.first_step, profile.reason),
        )
        advice = opened.once(key, Waited).get(
            lambda: [dataclasses.asdict(one) for one in advise(facts_of(opened, run, profile))]
        )
    return answer({"recording": stored.id, **told, "advice": advice})


class Waited:
    """A result that takes seconds (a replay is part of it): made once, while the recording's other views are answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[dict[str, Any]] | None = None

    def get(self, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """What ``make`` gives; who comes second waits for the first."""
        with self._lock:
            if self._made is None:
                self._made = make()
            return self._made


def facts_of(opened: Opened, run: KnownRun, profile: Profile | None = None) -> StepFacts:
    """What rules may ask of a recording."""
    return StepFacts(
        opened.trace,
        profile=profile,
        techniques=run.techniques,
        run_peak_bytes=run.peak_allocated_bytes,
        phase_peaks_bytes=run.phase_peaks_bytes,
    )


class KnownRun(NamedTuple):
    """What advice asks of a recording's run."""

    techniques: list[dict[str, Any]]
    peak_allocated_bytes: int | None
    """of the steps of the rank that recorded"""
    phase_peaks_bytes: dict[str, int]
    """highest allocated in each phase of these steps"""


def known_run(house: House, run_id: str | None, rank: int) -> KnownRun:
    """Of a recording that is of no run: nothing."""
    if run_id:
        with reader(house) as connection, contextlib.suppress(UnknownRun):
            run = find_run(connection, run_id)
            known = summary_of_rank(connection, run, rank) or RankSummary()
            return KnownRun(run["techniques"] or [], known.step_peak_bytes, known.phase_peaks_bytes)
    return KnownRun([], None, {})
