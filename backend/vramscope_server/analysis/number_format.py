"""Formats numbers for sentences and terminals. Unknown values are "unknown", never 0."""

from __future__ import annotations

from vramscope.protocol.series import MOST_GRAPHS

KIB, MIB, GIB = 2**10, 2**20, 2**30
UNKNOWN = "unknown"


def amount(value: int | float | None, unknown: str = UNKNOWN) -> str:
    """Bytes with one decimal: GiB, MiB below one GiB, KiB below one MiB."""
    if value is None:
        return unknown
    size = abs(value)
    if size >= GIB - MIB / 20:  # 1023.97 MiB would read "1024.0 MiB"
        return f"{value / GIB:.1f} GiB"
    if size >= MIB - KIB / 20:
        return f"{value / MIB:.1f} MiB"
    return f"{value / KIB:.1f} KiB" if size >= KIB else f"{value:.0f} B"


def duration(seconds: float | None, unknown: str = UNKNOWN) -> str:
    """A duration: 31 µs, 4.12 ms, 1.23 s, 3 min 20 s."""
    if seconds is None:
        return unknown
    if seconds >= 99.995:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.9995e-3 else f"{seconds * 1e6:.3g} µs"


def percent(fraction: float | None, unknown: str = UNKNOWN, *, signed: bool = False) -> str:
    """A fraction as percent, one decimal."""
    if fraction is None:
        return unknown
    return f"{fraction * 100:+.1f} %" if signed else f"{fraction * 100:.1f} %"


def count(value: int | None, unknown: str = UNKNOWN) -> str:
    """An integer with thousands separators."""
    return unknown if value is None else f"{value:,}"


def times(value: int) -> str:
    """Number of times: ``once``, ``12 times``."""
    return "once" if value == 1 else f"{value:,} times"


def graphs(value: int | None, unknown: str = UNKNOWN) -> str:
    """Number of live graphs. The agent stops counting at a limit, then "or more" follows."""
    return count(value, unknown) + (" or more" if value is not None and value >= MOST_GRAPHS else "")
