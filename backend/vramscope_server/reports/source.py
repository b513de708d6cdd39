"""Where reports get the answers of the API from: a server at an address, or this server itself."""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.answers.oom import OomExplained
from vramscope_server.answers.recordings import RecordingList
from vramscope_server.answers.run_detail import RunInFull

WAIT_SECONDS: Final = 5
"""Longest wait of one request for the evidence of an open recording."""


class AnswerSource(Protocol):
    """Function of a path and of parameters that returns the answer of the API, decoded."""

    def __call__(self, path: str, **parameters: Any) -> Any: ...


def newest_anatomy(source: AnswerSource, run: RunInFull) -> AnatomyAnswer | None:
    """Return the anatomy of the newest complete recording; None if there is none."""
    if not run.get("recordings"):
        return None
    listed: RecordingList = source(f"/runs/{run['run_id']}/recordings")
    newest = next((one["recording"] for one in listed["recordings"] if one["whole"]), None)
    anatomy: AnatomyAnswer | None = source(f"/recordings/{newest}/anatomy") if newest else None
    return anatomy


def explained_error(source: AnswerSource, record: str, most_seconds: float) -> OomExplained:
    """Return an out-of-memory error with the evidence of the open recording, unless that takes too long."""
    until = time.monotonic() + most_seconds
    while True:
        error: OomExplained = source(f"/oom/{record}", wait_seconds=WAIT_SECONDS)
        if not error["pending"] or time.monotonic() > until:
            return error
        time.sleep(0.1)
