"""Waiting for a condition in the place of a sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 60
"""Longest wait of a test for one condition. A shorter one would fail on a busy machine."""
CONVERSION_SECONDS = 600
"""Longest wait for what a conversion of a snapshot makes: the first one on a machine compiles its code."""


def eventually(check: Callable[[], Any], seconds: float = PATIENCE_SECONDS, what: str = "it") -> Any:
    """Call ``check`` until it returns something true, and return that. An AssertionError of it counts as false.

    Raises AssertionError with the last value, or from its last error, when the seconds are over.
    """
    deadline = time.monotonic() + seconds
    pause_seconds = 0.005
    while True:
        value, failed = None, None
        try:
            value = check()
        except AssertionError as error:
            failed = error
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds} s; last: {value!r}") from failed
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, 0.1)
