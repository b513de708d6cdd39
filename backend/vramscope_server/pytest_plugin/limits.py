"""Limits of a marked test: the arguments of its marker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import pytest

from vramscope_server.cli.client import Failure
from vramscope_server.cli.dryrun.cards import Card, card_named
from vramscope_server.cli.sizes import size_in_bytes

SHARE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*%")
NAMES: Final = ("peak", "card", "tolerance", "retries", "leaks")


@dataclass(frozen=True)
class Limits:
    """Limits of one test."""

    card: Card
    peak_bytes: int | None
    """None: the stored baseline counts."""
    tolerance: float
    """Share by which the peak may exceed the baseline."""
    retries: int | None
    """Most retries of the allocator; None: any number."""
    leaks: int | None
    """Most leaks; None: they are not searched for."""

    @classmethod
    def of(cls, mark: pytest.Mark) -> Limits:
        """Read a marker. Raises pytest.UsageError that names the argument and says what would be right."""
        given = dict(mark.kwargs)
        if mark.args or set(given) - set(NAMES):
            wrong = ", ".join([*(repr(one) for one in mark.args), *sorted(set(given) - set(NAMES))])
            raise pytest.UsageError(f"gpu_memory takes {', '.join(NAMES)} by name; it was given {wrong}")
        try:
            card = card_named(str(given.get("card", "h100")))
        except Failure as failure:
            raise pytest.UsageError(f"gpu_memory: {str(failure).removeprefix('--')}") from failure
        peak = given.get("peak")
        retries, leaks = (_count(given, name) for name in ("retries", "leaks"))
        return cls(card, None if peak is None else _bytes(peak), _share(given.get("tolerance", "2 %")), retries, leaks)


def _count(given: dict[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise pytest.UsageError(f"gpu_memory: {name}={value!r} is not a whole number from 0 on")
    return value


def _bytes(value: Any) -> int:
    try:
        return size_in_bytes(str(value))
    except ValueError:
        raise pytest.UsageError(f"gpu_memory: peak={value!r} is not a size, such as '8 GiB' or 8589934592") from None


def _share(value: Any) -> float:
    found = SHARE.fullmatch(str(value).strip())
    if found is None:
        raise pytest.UsageError(f"gpu_memory: tolerance={value!r} is not a share, such as '2 %'")
    return float(found[1]) / 100
