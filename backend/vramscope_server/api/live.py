"""Live events for pages, by polling."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request, Response

from vramscope_server.answers.live import LiveDelta
from vramscope_server.api.requested_range import reader
from vramscope_server.api.responses import answer
from vramscope_server.api.schemas import answers_with
from vramscope_server.caller import caller_of
from vramscope_server.services import Services
from vramscope_server.store.run_queries import UnknownRun, find_run

router = APIRouter(tags=["live"])

_MOST_RUNS = 100


@router.get("/live/delta", summary="Live events", responses=answers_with(LiveDelta))
def get_delta(
    request: Request,
    after: Annotated[int, Query(ge=0, description="Number of the newest known event; 0 at the start.")] = 0,
    runs: Annotated[str, Query(description="Runs whose events are sent, separated by commas.")] = "",
) -> Response:
    """Ask first with ``after=0``, then with ``last`` of the previous answer."""
    services: Services = request.app.state.services
    live = services.live_events
    if after:
        events, last, gap = live.since(after, _ids(request, runs), caller_of(request).scope)
    else:
        events, last, gap = [], live.start(), False
    rows = [{"id": event.id, "event": event.kind, "data": msgspec.Raw(event.data)} for event in events]
    return answer({"events": rows, "last": last, "gap": gap, "problems": services.problems()})


def _ids(request: Request, runs: str) -> frozenset[str]:
    """Ids of the runs in a list of names and ids. An unknown name is kept as an id: its run may start later."""
    found = set()
    texts = [text.strip() for text in runs.split(",") if text.strip()][:_MOST_RUNS]
    if texts:
        with reader(request) as connection:
            for text in texts:
                try:
                    found.add(str(find_run(connection, text, suggest=False).id))
                except UnknownRun:
                    found.add(text)
    return frozenset(found)
