"""Which other process has the device's memory at an error, and which one grew before it."""

from __future__ import annotations

from collections.abc import Sequence

from vramscope.protocol.number_format import amount
from vramscope.protocol.other_process import GREW_BYTES, OtherProcess


def words_of(others: Sequence[OtherProcess]) -> str:
    """Return a sentence about the process that grew most in the last minute, else about the largest one; "" if unknown."""
    known = [one for one in others if one.used_bytes]
    if not known:
        return ""
    grown = [one for one in known if (one.grown_bytes or 0) >= GREW_BYTES]
    if grown:
        most = max(grown, key=lambda one: one.grown_bytes or 0)
        began = "was not on the device" if not most.before_bytes else f"had {amount(most.before_bytes)}"
        return f"{_start(most)} grew most: it {began} {_ago(most)}, and now has {amount(most.used_bytes)}."
    largest = max(known, key=lambda one: one.used_bytes or 0)
    used = [one.used_bytes for one in others]
    half = None not in used and len(known) > 1 and 2 * (largest.used_bytes or 0) > sum(one or 0 for one in used)
    calm = all(one.before_seconds and one.grown_bytes is not None and one.grown_bytes <= 0 for one in others)
    grew = f" No other process grew in {_span(largest)}." if calm else ""
    return f"{_start(largest)} has {amount(largest.used_bytes)}{', most of what they have' if half else ''}.{grew}"


def _start(one: OtherProcess) -> str:
    return one.words[0].upper() + one.words[1:]


def _ago(one: OtherProcess) -> str:
    seconds = max(1, one.before_seconds or 0)
    return f"{seconds} {'second' if seconds == 1 else 'seconds'} earlier"


def _span(one: OtherProcess) -> str:
    seconds = one.before_seconds or 0
    return "the last second" if seconds == 1 else f"the last {seconds} seconds"
