"""Formats of a terminal, those included that reports use too."""

from __future__ import annotations

import time

from vramscope.protocol.other_process import name_words
from vramscope_server.analysis.number_format import UNKNOWN
from vramscope_server.answers.other_processes import ProcessName
from vramscope_server.reports.plain_text import ABSENT, cost, has_no_device, plain

__all__ = ["ABSENT", "STATE_STYLE", "ago", "cost", "has_no_device", "plain", "process_name"]

STATE_STYLE = {"running": "bold green", "finished": "default", "failed": "bold red", "lost": "yellow"}


def ago(seconds: float | None, now: float | None = None) -> str:
    """Format the time since a point in time, in whole units, rounded down."""
    if seconds is None:
        return UNKNOWN
    past = max(0.0, (time.time() if now is None else now) - seconds)
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if past >= size:
            return f"{past // size:.0f} {word} ago"
    return f"{past:.0f} s ago"


def process_name(row: ProcessName) -> str:
    """Another process in one line, from what is known of it."""
    known = (row["command"], row["user"], row["container"], row["manager"], row["job"], row["pod"], row["job_name"])
    return plain(name_words(row["pid"], *known))
