"""A number that was promised, and what came."""

from __future__ import annotations

import dataclasses

SHARE = 0.1
SMALL_BYTES = 8192
"""Sixteen roundings of the allocator: a fixed loop may keep a few scalars."""


@dataclasses.dataclass
class Promise:
    """One number that was promised, and what came; None where the detector said that it does not know."""

    promised: float | None
    came: float
    slack: float

    @property
    def verdict(self) -> str:
        """ "kept"; "less" or "more" came; "unknown": nothing was promised."""
        if self.promised is None:
            return "unknown"
        if abs(self.promised - self.came) <= self.slack:
            return "kept"
        return "less" if self.came < self.promised else "more"

    def __str__(self) -> str:
        note = {"less": " **less**", "more": " *more*"}.get(self.verdict, "")
        return side_by_side(self.promised, self.came) + note


def side_by_side(promised: float | None, came: float) -> str:
    """Both in the unit of the larger one."""
    largest = max(abs(promised or 0), abs(came))
    unit, size = next(((u, s) for u, s in (("MiB", 1 << 20), ("KiB", 1 << 10)) if largest >= s), ("B", 1))
    digits = 0 if largest >= 100 * size or unit == "B" else 1
    text = "unknown" if promised is None else f"{promised / size:.{digits}f}"
    return f"{text} / {came / size:.{digits}f} {unit}"
