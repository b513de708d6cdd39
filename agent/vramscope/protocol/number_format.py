"""Formats bytes, durations and fractions for sentences and terminals. Unknown values, NaN and infinity are "unknown".

The pages format by the same rules in ``frontend/format.js``. ``tests/number_formats.json`` has examples that both must meet.
"""

from __future__ import annotations

import math
from typing import Final

UNKNOWN: Final = "unknown"
_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def three_digits(value: float) -> str:
    """Three significant digits of a value that is not negative, and all digits before the point: 1.41, 61.8, 618, 1,010."""
    return _fixed(value, decimals(value))


def decimals(value: float) -> int:
    """Decimals that three significant digits of a value have."""
    return 2 if value < 9.995 else 1 if value < 99.95 else 0


def amount(value: float | None, unknown: str = UNKNOWN) -> str:
    """Bytes with three significant digits: 1.41 GiB, 61.8 MiB, 618 MiB, 12 B."""
    if value is None or not math.isfinite(value):
        return unknown
    size, unit = float(abs(value)), 0
    while size >= 1023.5 and unit < len(_BYTE_UNITS) - 1:  # 1023.7 MiB would read "1,024 MiB"
        size, unit = size / 1024, unit + 1
    words = three_digits(size) if unit else _fixed(size, 0)
    return f"{'-' if value < 0 and words != '0' else ''}{words} {_BYTE_UNITS[unit]}"


def duration(seconds: float | None, unknown: str = UNKNOWN) -> str:
    """A duration: 31.0 µs, 4.12 ms, 1.23 s, 3 min 20 s, 2 h 05 min, 3 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return unknown
    size, sign = abs(seconds), "-" if seconds < 0 else ""
    if size == 0:
        return "0 s"
    if size * 1e6 < 0.005:
        return "> -0.01 µs" if sign else "< 0.01 µs"
    for unit, scale in (("µs", 1e6), ("ms", 1e3)):
        if size * scale < 999.5:
            return f"{sign}{three_digits(size * scale)} {unit}"
    return sign + (f"{three_digits(size)} s" if size < 99.95 else _long(math.floor(size + 0.5)))


def percent(fraction: float | None, unknown: str = UNKNOWN, *, signed: bool = False) -> str:
    """A fraction as percent with one decimal: 12.4 %. ``signed``: with a plus where it is above zero."""
    if fraction is None or not math.isfinite(fraction):
        return unknown
    words = _fixed(abs(fraction) * 100, 1)
    sign = "" if float(words.replace(",", "")) == 0 else "-" if fraction < 0 else "+" if signed else ""
    return f"{sign}{words} %"


def _long(total: int) -> str:
    minutes, seconds = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _fixed(value: float, places: int) -> str:
    """Round half up, as the pages do: Python alone would round half to even."""
    scale = 10.0**places
    return f"{math.floor(value * scale + 0.5) / scale:,.{places}f}"
