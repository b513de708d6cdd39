"""A container that is emptied at once, and one whose elements go one after the other: told from how its tensors die."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from vramscope.leaks.verdict.periodic import AccumulationCycle


class Thing:
    """A tensor's stand-in: it can be referred to weakly."""


class Clock:
    round = 0

    def __call__(self) -> int:
        return self.round


def filled(
    rounds: int, let_go: Any, looks_at: set[int], kind: str = "growing"
) -> Iterator[tuple[int, AccumulationCycle, bool]]:
    """(round, fill, whether it was seen to be emptied) at each scan; ``let_go(kept, round)`` after each step."""
    clock, kept = Clock(), collections.deque[Thing]()
    fill = AccumulationCycle(kind, 0, clock)
    for clock.round in range(1, rounds + 1):
        kept.append(Thing())
        let_go(kept, clock.round)
        if clock.round in looks_at:
            emptied = fill.note_emptying()
            fill.watch(list(kept))
            yield clock.round, fill, emptied


def cleared(every: int) -> Any:
    return lambda kept, at: kept.clear() if at % every == 0 else None


def test_what_is_cleared_again_and_again_is_seen_with_its_period() -> None:
    seen = [(at, emptied, fill.after) for at, fill, emptied in filled(400, cleared(100), {30, 60, 99, 117, 250, 310})]
    assert seen == [
        (30, False, None),
        (60, False, None),
        (99, False, None),
        (117, True, 100),
        (250, True, 100),
        (310, True, 100),
    ]


def test_a_window_that_slides_is_not_emptied() -> None:
    def slide(kept: Any, at: int) -> None:
        if len(kept) > 20:
            kept.popleft()

    assert not any(emptied for _, _, emptied in filled(300, slide, set(range(25, 300, 50))))


def test_the_newest_that_a_variable_has_too_does_not_hide_that_the_rest_went() -> None:
    best: list[Thing] = []

    def clear(kept: Any, at: int) -> None:
        if at % 50 == 0:
            best[:] = [kept[-1]]
            kept.clear()

    assert [emptied for _, _, emptied in filled(80, clear, {45, 60})] == [False, True]


def test_it_is_looked_at_again_when_it_holds_the_most() -> None:
    _, fill, _ = list(filled(110, cleared(100), {90, 110}))[-1]
    assert [fill.next_full(at) for at in (110, 198, 199, 299)] == [199, 199, 299, 399]
    fill.full_scans = 2
    assert fill.next_full(110) is None


def test_an_emptying_that_was_missed_does_not_lengthen_the_period() -> None:
    fills = list(filled(900, cleared(100), {90, 110, 190, 780, 805}))
    assert [fill.after for _, fill, _ in fills][-1] == 100


def test_what_is_not_filled_again_is_over() -> None:
    def once(kept: Any, at: int) -> None:
        if at >= 40:
            kept.clear()

    _, fill, emptied = list(filled(60, once, {35, 45}))[-1]
    assert emptied and not fill.is_over(48) and fill.is_over(51)


def test_it_is_waited_for_until_an_epoch_has_passed_or_for_a_thousand_rounds() -> None:
    fill = AccumulationCycle("growing", 10, Clock())
    assert fill.may_be_emptied_yet(60, 0) and fill.may_be_emptied_yet(60, 9), "the epoch ended before it began to fill"
    assert fill.may_be_emptied_yet(60, 60) and not fill.may_be_emptied_yet(63, 60)
    assert fill.may_be_emptied_yet(1009, 0) and not fill.may_be_emptied_yet(1010, 0)
