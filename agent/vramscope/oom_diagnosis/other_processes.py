"""Which other process has the device's memory at an error, and which one grew before it."""

from __future__ import annotations

from collections.abc import Sequence

from vramscope.protocol.number_format import amount
from vramscope.protocol.other_process import GREW_BYTES, OtherProcess


def words_of(others: Sequence[OtherProcess]) -> str:
    """Return a sentence about the process that grew most in the last minute, else about the largest one; "" if unknown.

    A process whose bytes are unknown may be larger, or may have grown: then nothing is said of all processes.
    """
    known = [one for one in others if one.used_bytes]
    if not known:
        return ""
    grown = [one for one in known if (one.grown_bytes or 0) >= GREW_BYTES]
    if grown:
        most = max(grown, key=lambda one: one.grown_bytes or 0)
        began = "was not on the device" if not most.before_bytes else f"had {amount(most.before_bytes)}"
        is_compared = len(others) > 1 and all(one.grown_bytes is not None for one in others)
        grew = "grew most" if is_compared else "grew"
        return f"{_start(most)} {grew}: it {began} {_ago(most)}, and now has {amount(most.used_bytes)}."
    largest = max(known, key=lambda one: one.used_bytes or 0)
    calm = all(one.grown_bytes is not None and one.before_seconds for one in others)
    grew = f" No other process grew by {amount(GREW_BYTES)} or more in {_span(largest)}." if calm else ""
    rank = ", the largest amount reported" if len(others) > 1 else ""
    return f"{_start(largest)} has {amount(largest.used_bytes)}{rank}.{grew}"


def _start(one: OtherProcess) -> str:
    return one.words[0].upper() + one.words[1:]


def _ago(one: OtherProcess) -> str:
    seconds = max(1, one.before_seconds or 0)
    return f"{seconds} {'second' if seconds == 1 else 'seconds'} earlier"


def _span(one: OtherProcess) -> str:
    seconds = one.before_seconds or 0
    return "the last second" if seconds == 1 else f"the last {seconds} seconds"
