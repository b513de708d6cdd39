"""Opens the recording of a request, and checks its events and windows."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Annotated

from fastapi import Query, Request

from vramscope.protocol.window import BadWindow
from vramscope_server.api.problems import BadRecording, InvalidParameter, Storage
from vramscope_server.api.recordings import require_recording, whole
from vramscope_server.api.requested_range import reader
from vramscope_server.artifact_store.store import ArtifactsUnreachable
from vramscope_server.recording_cache import OpenRecording
from vramscope_server.services import Services
from vramscope_server.store.artifacts import StoredArtifact

log = logging.getLogger("vramscope_server")

First = Annotated[
    int | None, Query(alias="from", ge=-1, description="First event of the window; -1 is before the first.")
]
End = Annotated[int | None, Query(alias="to", ge=0, description="End of the window, not included.")]


def open_recording(request: Request, text: str) -> tuple[StoredArtifact, OpenRecording]:
    """Open a recording. Raises NotFound, Conflict while pieces are missing, BadRecording, Storage if a bucket does not answer."""
    services: Services = request.app.state.services
    with reader(request) as connection:
        stored = require_recording(connection, text)
    whole(stored)
    try:
        with readable(stored):
            return stored, services.recordings.open(stored.id)
    except ArtifactsUnreachable as trouble:
        raise Storage(f"The recording cannot be read now: {trouble.strerror}.", headers={"Retry-After": "10"}) from None
    except (BadRecording, OSError):
        with reader(request) as connection:
            require_recording(connection, text)  # deleted since it was found: NotFound, not damaged
        raise


@contextlib.contextmanager
def readable(stored: StoredArtifact) -> Iterator[None]:
    """Turn a recording that cannot be read into BadRecording: the sender's mistake or damage, not a fault of the server."""
    try:
        yield
    except BadWindow as bad:
        raise BadRecording(f"The bytes are not a recording: {bad}.", field="recording", seen=stored.id) from None
    except (ArithmeticError, LookupError, ValueError, MemoryError) as error:
        # Columns that are valid one by one may contradict each other in more ways than can be checked beforehand.
        # Any file may do so, and is read again and again: the traceback is for debugging only.
        log.warning("recording %s cannot be read: %s: %s", stored.id, type(error).__name__, error)
        log.debug("recording cannot be read", exc_info=error)
        raise BadRecording(
            f"The recording contradicts itself ({type(error).__name__}).", field="recording", seen=stored.id
        ) from None


def require_event(opened: OpenRecording, event: int | None) -> int:
    """Event of a request, by default the peak. Raises InvalidParameter beyond the last."""
    if event is None:
        return opened.moments.peak_event
    last = len(opened.trace.events) - 1
    if event > last:
        raise InvalidParameter(
            f"The recording has {last + 1} events.", field="event", seen=event, expected=f"-1 to {last}"
        )
    return event


def checked_events(events: int, first: int | None, end: int | None) -> tuple[int, int]:
    """Window of a request within a recording. Raises InvalidParameter if it is empty."""
    first = -1 if first is None else first
    end = events if end is None else min(end, events)
    if first >= end:
        raise InvalidParameter(
            f"The window from {first} to {end} is empty; the events are -1 to {events - 1}.",
            field="from",
            seen=first,
            expected=f"-1 to {events - 1}, and less than to",
        )
    return first, end
