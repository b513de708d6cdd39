"""The recording that a call means, opened; and which moments and windows of it there are to ask for."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Annotated

from fastapi import Query, Request

from vramscope.protocol.window import BadWindow
from vramscope_server.api.problems import BadRecording, InvalidParameter
from vramscope_server.api.recordings import the_recording, whole
from vramscope_server.api.run_window import reader
from vramscope_server.recording_cache import Opened
from vramscope_server.services import House
from vramscope_server.store.artifacts import Stored

log = logging.getLogger("vramscope_server")

First = Annotated[
    int | None, Query(alias="from", ge=-1, description="the window's first moment; -1: before the first event")
]
End = Annotated[int | None, Query(alias="to", ge=0, description="the window's end, not included")]


def open_recording(request: Request, text: str) -> tuple[Stored, Opened]:
    """The recording meant, opened. Raises NotFound, Conflict while pieces are missing, BadRecording."""
    house: House = request.app.state.house
    with reader(house) as connection:
        stored = the_recording(connection, text)
    whole(stored)
    try:
        with readable(stored):
            return stored, house.shelf.open(stored.id)
    except (BadRecording, OSError):
        with reader(house) as connection:
            the_recording(connection, text)  # (deleted since it was looked up: NotFound, and no damage)
        raise


@contextlib.contextmanager
def readable(stored: Stored) -> Iterator[None]:
    """Tells a recording that cannot be understood as what it is: the sender's mistake, or damage, none of ours."""
    try:
        yield
    except BadWindow as bad:
        raise BadRecording(f"Its bytes are no recorded window: {bad}.", field="recording", seen=stored.id) from None
    except (ArithmeticError, LookupError, ValueError, MemoryError) as error:
        # Columns that are sound one by one may still contradict each other in more ways than can be checked beforehand.
        # A file of anybody's can be so, and is looked at again and again: where it was noticed is told to who looks for a fault.
        log.warning("recording %s cannot be understood: %s: %s", stored.id, type(error).__name__, error)
        log.debug("noticed here", exc_info=error)
        raise BadRecording(
            f"What it tells contradicts itself ({type(error).__name__}).", field="recording", seen=stored.id
        ) from None


def the_event(opened: Opened, event: int | None) -> int:
    """The moment meant. Raises InvalidParameter beyond the last."""
    if event is None:
        return opened.moments.peak_event
    last = len(opened.trace.events) - 1
    if event > last:
        raise InvalidParameter(
            f"The recording has {last + 1} events.", field="event", seen=event, expected=f"-1 to {last}"
        )
    return event


def the_window(events: int, first: int | None, end: int | None) -> tuple[int, int]:
    """Within a recording of so many events; raises InvalidParameter where nothing of it is meant."""
    first = -1 if first is None else first
    end = events if end is None else min(end, events)
    if first >= end:
        raise InvalidParameter(
            f"The window from {first} to {end} holds no moment; the recording's are -1 to {events - 1}.",
            field="from",
            seen=first,
            expected=f"-1 to {events - 1}, and less than to",
        )
    return first, end
