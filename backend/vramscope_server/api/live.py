"""What happens now: server-sent events, and the same by polling where a proxy holds streams back."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from vramscope_server.answers.live import LiveDelta
from vramscope_server.api.responses import answer
from vramscope_server.api.run_window import reader
from vramscope_server.api.schemas import answers_with
from vramscope_server.services import House
from vramscope_server.store.run_queries import UnknownRun, find_run

router = APIRouter(tags=["live"])

ALIVE_SECONDS: Final = 8.0
"""A stream says so often that it is alive: proxies cut silent connections, and pages see that it is not held back."""
LOOK_SECONDS: Final = 1.0
"""So soon a stream tells that the server's problems have changed."""
_ID: Final = re.compile("[0-9]{1,18}")
"""of an event; a Last-Event-ID that cannot be one is as none"""
Runs = Annotated[str, Query(description="runs whose rows are wanted, separated by commas")]


@router.get(
    "/live",
    summary="Server-sent events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Events, until the client disconnects."}},
)
async def live(
    request: Request,
    runs: Runs = "",
    after: Annotated[int | None, Query(description="as Last-Event-ID, for those who cannot set headers")] = None,
) -> Response:
    """Events ``rows``, ``look``, ``recording`` (of the runs asked for), ``run`` (of all), ``gap``, ``alive``: docs/http.md."""
    house: House = request.app.state.house
    resumed = request.headers.get("last-event-id", "")
    if _ID.fullmatch(resumed):
        after = int(resumed)
    wanted = await run_in_threadpool(_ids, house, runs)
    return StreamingResponse(
        _stream(house, wanted, after),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no"},
    )


async def _stream(house: House, runs: frozenset[str], after: int | None) -> AsyncIterator[bytes]:
    reader = house.broadcaster.subscribe(runs, after)
    try:
        if after is None:
            after = house.broadcaster.last
        problems, said = house.problems(), time.monotonic()
        yield b"retry: 1000\nid: %d\n" % after + _alive(problems)
        while not reader.closed:
            missed, events = await reader.take(LOOK_SECONDS)
            parts = [b"event: gap\ndata: {}\n\n"] if missed else []
            parts += [b"id: %d\nevent: %s\ndata: %s\n\n" % (e.id, e.kind.encode(), e.data) for e in events]
            if problems != (now := house.problems()) or (not parts and time.monotonic() - said >= ALIVE_SECONDS):
                problems = now
                parts.append(_alive(problems))
            if parts:
                said = time.monotonic()
                yield b"".join(parts)
    finally:
        house.broadcaster.leave(reader)


def _alive(problems: list[str]) -> bytes:
    return b"event: alive\ndata: %s\n\n" % msgspec.json.encode({"problems": problems})


@router.get("/live/delta", summary="The same events by polling", responses=answers_with(LiveDelta))
async def delta(request: Request, after: Annotated[int, Query(ge=0)] = 0, runs: Runs = "") -> Response:
    """``{events: [{id, event, data}], last, gap, problems}``. Ask first with 0, then with ``last``.

    ``gap``: fetch windows again; ``problems``: the server's."""
    house: House = request.app.state.house
    wanted = await run_in_threadpool(_ids, house, runs)
    events, gap = house.broadcaster.since(after, wanted) if after else ([], False)
    if not after:
        house.broadcaster.heard()
    last = house.broadcaster.last
    told = [{"id": event.id, "event": event.kind, "data": msgspec.Raw(event.data)} for event in events]
    return answer({"events": told, "last": last, "gap": gap, "problems": house.problems()})


def _ids(house: House, runs: str) -> frozenset[str]:
    """Ids of the runs meant; what is not known yet may come, so it is taken as an id."""
    found = set()
    texts = [text.strip() for text in runs.split(",") if text.strip()][:100]
    if texts:
        with reader(house) as connection:
            for text in texts:
                try:
                    found.add(str(find_run(connection, text)["id"]))
                except UnknownRun:
                    found.add(text)
    return frozenset(found)
