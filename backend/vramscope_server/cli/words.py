"""Numbers as people read them in a terminal."""

from __future__ import annotations

import time

KIB, MIB, GIB = 2**10, 2**20, 2**30
UNKNOWN = "unknown"


def amount(value: int | float | None) -> str:
    """Bytes: GiB with one decimal, MiB below one GiB, and what is not known is called so."""
    if value is None:
        return UNKNOWN
    if abs(value) >= GIB:
        return f"{value / GIB:.1f} GiB"
    if abs(value) >= MIB:
        return f"{value / MIB:.1f} MiB"
    return f"{value / KIB:.1f} KiB" if abs(value) >= KIB else f"{value:.0f} B"


def duration(seconds: float | None) -> str:
    """A step's time: ms below a second."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def percent(fraction: float | None, *, signed: bool = False) -> str:
    """A fraction as percent, one decimal."""
    if fraction is None:
        return UNKNOWN
    return f"{fraction * 100:+.1f} %" if signed else f"{fraction * 100:.1f} %"


def ago(seconds: float | None) -> str:
    """How long since a moment."""
    if seconds is None:
        return UNKNOWN
    past = max(0.0, time.time() - seconds)
    for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if past >= size:
            return f"{past / size:.0f} {word} ago"
    return f"{past:.0f} s ago"


STATE_STYLE = {"running": "bold green", "finished": "default", "failed": "bold red", "lost": "yellow"}
