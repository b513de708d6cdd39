"""What a recording's memory is for at its peak, and what would make it less."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from vramscope.profile_tables import Profile
from vramscope_server.analysis.advice.facts import Facts
from vramscope_server.analysis.advice.rules import advise
from vramscope_server.analysis.anatomy.summary import summary
from vramscope_server.house import House
from vramscope_server.recordings import Opened
from vramscope_server.store.queries import UnknownRun, find_run

from .answers import answer
from .fragmentation import Event
from .opened import open_recording, readable, the_event
from .profiles import newest_profile
from .windows import reader

router = APIRouter(tags=["recordings"])


@router.get("/recordings/{recording}/anatomy", summary="What the memory is for, and what would make it less")
def get_anatomy(request: Request, recording: str, event: Event = None) -> Response:
    """Categories, phases and modules at a moment (none given: the peak of allocated bytes), what is unknown, and advice."""
    stored, opened = open_recording(request, recording)
    techniques = techniques_of(request.app.state.house, stored.run_id)
    profile = newest_profile(request.app.state.house, stored.run_id, stored.rank)
    with readable(stored):
        moment = None if event is None else the_event(opened, event)
        told = opened.once(("anatomy", moment), lambda: summary(opened.trace, moment))
        key = ("advice", str(techniques), profile and (profile.first_step, profile.reason))
        advice = opened.once(key, Waited).get(lambda: advice_of(opened, techniques, profile))
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


def advice_of(opened: Opened, techniques: list[dict[str, Any]], profile: Profile | None) -> list[dict[str, Any]]:
    """Each piece of advice as the API shows it."""
    facts = Facts(opened.trace, profile=profile, techniques=techniques)
    return [dataclasses.asdict(advice) for advice in advise(facts)]


def techniques_of(house: House, run_id: str | None) -> list[dict[str, Any]]:
    """What the run is known to train with; none where there is no run."""
    if not run_id:
        return []
    with reader(house) as connection:
        try:
            return find_run(connection, run_id)["techniques"] or []
        except UnknownRun:
            return []
