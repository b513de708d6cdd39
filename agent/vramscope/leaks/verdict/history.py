"""How what a holder has changes from look to look: it rises, it has settled, it was emptied or made anew."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from vramscope.leaks.policy import POLICY


@dataclasses.dataclass
class Remembered:
    """One holder in an earlier look."""

    step: int
    round: int
    tensors: int
    graphs: int
    held_bytes: int
    reach: int
    overlaps: bool
    after: int
    nodes: int
    tensors_then: list[weakref.ref[Any]]
    given_elements: int = 0
    """of what the model was given then; 0: not known"""


def was_renewed(before: Sequence[Remembered]) -> bool:
    """Whether none of what was held at the last look lives: what is held now was made since."""
    return bool(before) and all(reference() is None for reference in before[-1].tensors_then)


def rises(scans: list[Remembered], value: Callable[[Remembered], int], rounds: int, least_scans: int) -> bool:
    """Whether a value rose without a fall over so many rounds and looks, and has not slowed down at the end."""
    rising = _rising(scans, value)
    newest, oldest = rising[0], rising[-1]
    span = newest.round - oldest.round
    # Not simply the look before: where optimizers take turns it lies within the same batch.
    second = next((seen for seen in rising[1:] if newest.round - seen.round >= span * POLICY.recent_share), oldest)
    gained = value(newest) - value(oldest)
    if len(rising) < least_scans or span < rounds or gained < POLICY.least_rise:
        return False
    lately = (value(newest) - value(second)) / (newest.round - second.round)
    return lately >= POLICY.recent_pace * gained / span


def lengthens(scans: list[Remembered], rounds: int, least_scans: int) -> bool:
    """Whether a single tensor is made longer and longer. One of changing size, a batch of texts say, rises over some looks by
    chance: what gets longer begins its rise no lower than it ever was, and keeps its pace from look to look."""
    rising = _rising(scans, _bytes)
    start, span = rising[-1], rising[0].round - rising[-1].round
    highest_before = max((seen.held_bytes for seen in scans if seen.round < start.round), default=0)
    if rises(scans, _given, rounds, least_scans):
        return False  # of batches that get longer and longer each one's result is longer than the last
    if start.held_bytes < highest_before or not rises(scans, _bytes, rounds, least_scans):
        return False
    least = POLICY.steady_pace * _pace(_bytes, start, rising[0])
    long = [now for now in rising if now.round - start.round >= span * POLICY.recent_share]
    return all(_pace(_bytes, before, now) >= least for now, before in pairwise([*long, start]))


def _rising(scans: list[Remembered], value: Callable[[Remembered], int]) -> list[Remembered]:
    """The newest looks, over which the value never fell, newest first: one a round."""
    rising = [scans[-1]]
    for seen in reversed(scans[:-1]):
        if value(seen) > value(rising[-1]):
            break
        if seen.round < rising[-1].round:
            rising.append(seen)
    return rising


def has_settled(scans: list[Remembered]) -> bool:
    """Whether growth has stopped or has all but stopped: caches that fill with what comes ever more seldom never quite do."""
    late = _since_lately(scans)
    return late is not None and all(_slowed(value, scans, late) for value in (_tensors, _bytes))


def _since_lately(scans: list[Remembered]) -> Remembered | None:
    """The look since which a third of the rounds have gone by, with another one between; None where there is none."""
    now = scans[-1]
    least = max(POLICY.graph_growth_iterations, (now.round - scans[0].round) * POLICY.settling_share)
    late = next((seen for seen in reversed(scans) if now.round - seen.round >= least), None)
    return (
        late if late is not None and sum(seen.round >= late.round for seen in scans) >= POLICY.settling_scans else None
    )


def _slowed(value: Callable[[Remembered], int], scans: list[Remembered], late: Remembered) -> bool:
    return _pace(value, late, scans[-1]) <= POLICY.settled_pace * max(0.0, _pace(value, scans[0], scans[-1]))


def has_shrunk(scans: list[Remembered]) -> bool:
    """Whether there is less of it than at the look before: what a loop makes longer and longer never gets shorter."""
    return len(scans) > 1 and scans[-1].held_bytes < scans[-2].held_bytes


def was_plain_and_is_dead(seen: Remembered) -> bool:
    """Whether a holder had tensors without graphs, and most of them are gone. (Graphs that were kept once were kept.)"""
    alive = sum(reference() is not None for reference in seen.tensors_then)
    return not seen.graphs and alive <= POLICY.emptied_share * len(seen.tensors_then)


def _pace(value: Callable[[Remembered], int], first: Remembered, last: Remembered) -> float:
    return (value(last) - value(first)) / max(1, last.round - first.round)


def _given(seen: Remembered) -> int:
    return seen.given_elements


def _tensors(seen: Remembered) -> int:
    return seen.tensors


def _bytes(seen: Remembered) -> int:
    return seen.held_bytes


def bytes_a_round(before: list[Remembered], now: Remembered) -> float | None:
    """Since the first look that is remembered, or, where the bytes have slowed down, of late; None where there is none: a window of
    tensors fills up beside a sum whose graph gets longer and longer."""
    return _bytes_a(before, now, lambda seen: seen.round)


def bytes_a_step(before: list[Remembered], now: Remembered) -> float | None:
    """The same by the training's steps."""
    return _bytes_a(before, now, lambda seen: seen.step)


def _bytes_a(before: list[Remembered], now: Remembered, number: Callable[[Remembered], int]) -> float | None:
    first = next((seen for seen in before if number(seen) < number(now)), None)
    if first is None:
        return None
    pace = (now.held_bytes - first.held_bytes) / (number(now) - number(first))
    late = _since_lately([*before, now])
    if pace > 0 and late is not None and number(late) < number(now) and _slowed(_bytes, [*before, now], late):
        return max(0.0, (now.held_bytes - late.held_bytes) / (number(now) - number(late)))
    return pace


def began(scans: list[Remembered]) -> int:
    """The round in which there was none of it, by the pace at which there came to be more."""
    pace, now = _pace(_tensors, scans[0], scans[-1]), scans[-1]
    return round(now.round - now.tensors / pace) if pace > 0 else now.round - now.reach
