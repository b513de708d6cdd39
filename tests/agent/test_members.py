"""What is in weak sets, as it changes."""

from __future__ import annotations

import gc
from weakref import WeakSet

from vramscope.recording.weak_members import WeakMembers


class Thing:
    def __init__(self, *, is_meant: bool = True) -> None:
        self.is_meant = is_meant


def test_whoever_came_or_died_is_seen_and_nobody_is_kept_alive() -> None:
    first, second = Thing(), Thing()
    some, others = WeakSet([first]), WeakSet([first])
    members = WeakMembers(some, others)
    assert members.living() == [first], "each once"
    others.add(second)
    assert members.living() == [first, second]
    third = Thing()
    some.add(third)
    del second
    gc.collect()
    assert set(members.living()) == {first, third}, "as many as before, and not the same"
    del first, third
    gc.collect()
    assert members.living() == []


def test_of_those_that_are_meant_each_is_asked_when_it_came() -> None:
    asked: list[Thing] = []

    def is_meant(thing: Thing) -> bool:
        asked.append(thing)
        return thing.is_meant

    meant, other = Thing(), Thing(is_meant=False)
    some = WeakSet([other])
    members = WeakMembers(some, only=is_meant)
    assert members.living() == members.living() == []
    assert asked == [other]
    asked.clear()
    some.add(meant)
    del other  # (as many as there were)
    gc.collect()
    assert members.living() == [meant]
