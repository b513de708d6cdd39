"""The pass over all objects does no harm to what another thread is making, and leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest
import torch

from vramscope.leaks.scan.referrers import _young_ancestors
from vramscope.leaks.scan.scanner import Scanner
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import Costs, TimeBudget
from vramscope.process import live_objects


class HalfMade:
    """A tuple that another thread is making, out of a generator that waits before its last value."""

    def __init__(self) -> None:
        self._begun, self._may_end = threading.Event(), threading.Event()
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._make)
        self._thread.start()
        assert self._begun.wait(10)

    def _values(self):
        yield from range(12)  # (more than CPython begins with, and not as many as it has when it made room again)
        self._begun.set()
        assert self._may_end.wait(10)
        yield 12

    def _make(self) -> None:
        try:
            assert tuple(self._values()) == tuple(range(13))
        except Exception as fault:
            self._fault = fault

    def end(self) -> Exception | None:
        """What went wrong in the thread."""
        self._may_end.set()
        self._thread.join()
        return self._fault


def test_a_list_of_all_objects_breaks_what_another_thread_is_making():
    """Why none may exist while Python before 3.14 is supported. Python 3.14 makes such a tuple at the end."""
    other = HalfMade()
    every = gc.get_objects()
    fault = other.end()
    assert fault is None if sys.version_info >= (3, 14) else isinstance(fault, SystemError)
    assert every


@pytest.mark.parametrize(
    "scan",
    [
        lambda: live_objects.living(torch.nn.Module, dict),
        lambda: live_objects.of_types({dict}),
        lambda: live_objects.young(10**6),
        lambda: _young_ancestors([torch.zeros(1)], set(), TimeBudget(60.0)),
    ],
)
def test_tuples_under_construction_are_never_returned(scan):
    other = HalfMade()
    seen = scan()
    assert other.end() is None
    seen[0].clear() if type(seen) is tuple and type(seen[0]) is list else None


def test_a_pass_does_not_disturb_other_threads():
    """Between any two of its glances at the clock one of them begins a tuple, and ends the one before."""
    faults: list[Exception | None] = []
    halves: list[HalfMade] = []

    def clock() -> float:
        faults.extend(half.end() for half in halves)
        halves[:] = [HalfMade()]
        return 0.0

    scanner = Scanner(TensorKinds())
    scanner._costs = Costs(clock)
    kept = [torch.zeros(64, 64) for _ in range(5)]
    cycle = [kept]
    cycle.append(cycle)
    nameless = torch.zeros(8, 8)
    weakref.ref(nameless)
    looked = scanner.scan(10, lambda optimizer: False, None)
    faults.extend(half.end() for half in halves)
    assert any(group.holder.name == "kept" for group in looked.groups)
    assert len(faults) > 3 and set(faults) == {None}


def test_objects_are_found_by_their_type_the_oldest_first_and_counted():
    class Mine: ...

    class Made(Mine): ...

    old = [Mine() for _ in range(5)]
    gc.collect()
    new = Made()
    assert live_objects.living(Mine) == [*old, new]
    found, count = live_objects.of_types({Made})
    assert found == [new] and abs(count - len(gc.get_objects())) < 1000


def test_no_metaclass_of_the_user_is_called():
    class Loud(type):
        def __hash__(cls):
            raise RuntimeError("asked for a hash")

    class Kind(metaclass=Loud): ...

    one = Kind()
    found, _ = live_objects.of_types({dict})
    assert found and one is not None


@pytest.mark.parametrize("scan", [lambda: live_objects.of_types({dict}), lambda: live_objects.young(10**6)])
def test_a_pass_keeps_nothing_alive(scan):
    class Mine: ...

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        one = Mine()
        gone = weakref.ref(one)
        seen = scan()
        seen[0].clear()
        del one, seen
        assert gone() is None
    finally:
        if was_enabled:
            gc.enable()


def test_cycles_through_a_tuple_are_found_among_the_young():
    holder = []
    pair = (torch.zeros(64), holder)
    holder.append(pair)
    closure, whole = _young_ancestors([pair[0]], set(), TimeBudget(60.0))
    assert whole and {id(pair), id(holder)} <= set(closure)
