"""The largest batch and the longest sequence that fit, if the command has arguments for them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vramscope_server.analysis.number_format import count
from vramscope_server.cli.dryrun.cards import Card
from vramscope_server.cli.dryrun.training import Plan, tell
from vramscope_server.cli.dryrun.verdict import CONTEXT_HIGH_BYTES, Verdict, peak_reserved

NAMES: Final = {
    "batch size": re.compile(r"((per[-_]device[-_])?train[-_]|(micro|mini)[-_])?batch[-_]?size|bs"),
    "sequence length": re.compile(
        r"((max|model[-_]max|train)[-_])*(seq(uence)?[-_]?len(gth)?|length)|block[-_]size|context[-_]len(gth)?"
    ),
}
"""Names of arguments, without dashes."""
MOST_RUNS: Final = 8
"""Dry runs for one argument."""
GRAINS: Final = 16
"""A sequence length is found to this part of the present one."""
PARTS: Final = 100
"""Large values are found to this part of them: peaks rise in steps of 2 MiB and more."""


@dataclass(frozen=True)
class SizeArgument:
    """An argument of the command with a number that the need for memory depends on."""

    title: str
    option: str
    """The argument as the command has it: ``--batch-size``."""
    value: int
    position: int
    """Index of the word with the value."""

    def replaced(self, command: Sequence[str], value: int) -> list[str]:
        """Return the command with another value."""
        words = list(command)
        name, equals, _ = words[self.position].partition("=")
        words[self.position] = f"{name}={value}" if equals else str(value)
        return words


@dataclass(frozen=True)
class Measured:
    """Result of the training with one value."""

    fits: bool
    need_bytes: int
    """Peak reserved."""
    is_close: bool = False
    """True if it is too close to say. Then ``fits`` is False."""


@dataclass(frozen=True)
class Largest:
    """What was found about an argument."""

    argument: SizeArgument
    largest: int | None
    """Largest value that was run and fits; None if none did."""
    peak_reserved_bytes: int | None
    """Peak with that value."""
    too_large: int | None
    """Smallest value that was run and is not known to fit."""
    reason: str
    """Why the search ended early; empty if it did not."""
    is_close: bool = False
    """True if that value is too close to say."""


def size_arguments(command: Sequence[str]) -> list[SizeArgument]:
    """Return the first argument for each size, from the words behind the script. Of one that is repeated the last counts."""
    script = next((at for at, word in enumerate(command) if word.endswith(".py") or word == "-m"), len(command))
    found: dict[str, SizeArgument] = {}
    for title, option, value, position in _numbers(command, script + 1):
        if title not in found or found[title].option == option:
            found[title] = SizeArgument(title, option, value, position)
    return list(found.values())


def _numbers(command: Sequence[str], begin: int) -> Iterator[tuple[str, str, int, int]]:
    for at in range(begin, len(command)):
        option, equals, value = command[at].partition("=")
        position = at
        if not equals and option.startswith("-") and at + 1 < len(command):
            value, position = command[at + 1], at + 1
        if value.isdecimal() and int(value) > 0:
            for title, names in NAMES.items():
                if names.fullmatch(option.lstrip("-")):
                    yield title, option, int(value), position


def find_largest(plan: Plan, card: Card, plain: Verdict, judge: Callable[[Plan, Card], Verdict]) -> list[Largest]:
    """Search for each size argument of the command. ``judge`` runs a plan."""
    need = peak_reserved(plain.trial)
    if need is None:
        return []
    found = []
    for argument in size_arguments(plan.command):
        tell(f"searching the largest {argument.option} that fits")

        def run(value: int, argument: SizeArgument = argument) -> Measured | None:
            command = argument.replaced(plan.command, value)
            verdict = judge(replace(plan, command=command, label=f"{argument.option} {value}"), card)
            peak = peak_reserved(verdict.trial)
            if verdict.answer == "not trustworthy" or peak is None:
                return None
            tell(f"  {argument.option} {count(value)}: {verdict.answer}")
            return _measured(verdict, peak)

        grain = 1 if argument.title == "batch size" else max(1, argument.value // GRAINS)
        room = card.total_bytes - CONTEXT_HIGH_BYTES
        found.append(search(argument, _measured(plain, need), run, room, grain))
    return found


def _measured(verdict: Verdict, need_bytes: int) -> Measured:
    return Measured(verdict.answer == "fits", need_bytes, verdict.answer == "too close to say")


def search(
    argument: SizeArgument, present: Measured, run: Callable[[int], Measured | None], room_bytes: int, grain: int
) -> Largest:
    """Search between a value that fits and one that does not, by straight lines through what was measured."""
    known = {argument.value: present}
    reason = ""
    while not reason and (value := _next(known, room_bytes, grain)) is not None:
        if len(known) > MOST_RUNS:
            reason = f"stopped after {count(MOST_RUNS)} runs"
        elif (measured := run(value)) is None:
            reason = f"{argument.option} {count(value)} gave no result"
        else:
            known[value] = measured
            if len(known) == 2 and measured.need_bytes == present.need_bytes:
                reason = f"peak reserved does not depend on {argument.option}"
    fitting = _fitting(known)
    other = min((value for value, one in known.items() if not one.fits), default=None)
    is_close = other is not None and known[other].is_close
    peak = None if fitting is None else known[fitting].need_bytes
    return Largest(argument, fitting, peak, other, reason, is_close)


def _fitting(known: dict[int, Measured]) -> int | None:
    return max((value for value, one in known.items() if one.fits), default=None)


def _next(known: dict[int, Measured], room_bytes: int, grain: int) -> int | None:
    """Return the value to run next; None if the border is known to a grain."""
    low = _fitting(known) or 0
    high = min((value for value, one in known.items() if not one.fits), default=None)
    grain = max(grain, low // PARTS)
    if high is not None and high - low <= grain:
        return None
    if high is not None and low - grain in known and low - 2 * grain in known:  # the lines say too little
        return (low + high) // 2
    guess = 2 * low if high is None else (low + high) // 2
    if len(known) > 1:
        nearest = sorted(known, key=lambda value: abs(known[value].need_bytes - room_bytes))[:2]
        line = _crossing(known, nearest[0], nearest[1], room_bytes, grain)
        if high is not None and low in known and not (line is not None and low <= line < high):
            line = _crossing(known, low, high, room_bytes, grain)
        guess = guess if line is None else line
    most = 8 * low if high is None else high - grain
    return min(max(guess, low + grain), most)


def _crossing(known: dict[int, Measured], first: int, second: int, room_bytes: int, grain: int) -> int | None:
    """Return the value at which the line through two results reaches the room. None: the line does not rise."""
    slope = (known[second].need_bytes - known[first].need_bytes) / (second - first)
    return first + math.floor((room_bytes - known[first].need_bytes) / slope / grain) * grain if slope > 0 else None
