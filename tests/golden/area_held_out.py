"""Verdicts on the deaths that were held out (tests/oom/held_out.py), as of those of the suite."""

from __future__ import annotations

from area_deaths import of_deaths
from files import Result
from held_out import HELD_OUT

AREA = "held_out"


def compute() -> dict[str, Result]:
    """Three minutes."""
    return {AREA: of_deaths(HELD_OUT)}


def check() -> dict[str, Result]:
    return {AREA: of_deaths(HELD_OUT, again=AREA)}
