"""Live events by polling."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class LiveEvent(TypedDict):
    """A live event; docs/http.md lists the kinds."""

    id: int
    """Number of the event; it rises over all runs."""
    event: str
    """Kind of the event."""
    data: dict[str, Any]
    """Content, by kind."""


class LiveDelta(TypedDict):
    """Live events since a known one."""

    events: list[LiveEvent]
    """Events since then, in order."""
    last: int
    """Number of the newest event: `after` of the next call."""
    gap: bool
    """Whether events were lost: fetch the window again."""
    problems: list[str]
    """Problems of the server, in sentences."""
