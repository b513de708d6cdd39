"""What bytecode says about a container: a bound by a slice, a generator that hands out what it keeps; frames of returned calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest

from vramscope.leaks.holders import drains, line_search
from vramscope.leaks.holders.bytecode import lines_of
from vramscope.leaks.scan.object_children import children
from vramscope.leaks.verdict.history import Observation, fills_slots, keys_recur
from vramscope.process.frames import is_running

HAS_COLUMNS = sys.version_info >= (3, 11)


def code_of(lines: str) -> CodeType:
    """The code of a method ``f`` with this body."""
    names: dict[str, Any] = {}
    exec("def f(self, torch, new, old, size):\n" + "".join(f"    {line}\n" for line in lines.splitlines()), names)
    code: CodeType = names["f"].__code__
    return code


@pytest.mark.parametrize(
    ("body", "resets"),
    [
        ("for name in old: setattr(self, name, list(old[name]))", True),
        ("for name in old: setattr(self, name, old[name].clone())", True),
        (
            "for name, value in old.items(): setattr(self, name, value)",
            False,
        ),  # load_state_dict() brings the old values
        ("setattr(self, new, [])", False),  # one attribute, at any time: it may be the one that is made
        ("for name in old: setattr(new, name, [])", False),
        ("for number in old: setattr(self, f'out_{number}', new)", False),  # more and more attributes
    ],
)
def test_a_method_that_sets_attributes_by_computed_names_is_known(body: str, resets: bool) -> None:
    assert (drains.set_by_name([code_of(body)]) is not None) is resets


def test_a_line_that_adds_a_parameter_is_told_from_one_that_overwrites() -> None:
    body = "new['params'] = old\nself.param_groups[0]['params'].append(old)\nself.param_groups[0]['params'][0] = new"
    code = code_of(body)
    assert [line_search.adds_at(code, number) for number in (2, 3, 4)] == [False, True, False]
    assert not line_search.adds_at(None, None)


def test_what_an_object_begins_with_is_no_reset() -> None:
    class Metric:
        def __init__(self, defaults: dict[str, Any]) -> None:
            for name in defaults:
                setattr(self, name, list(defaults[name]))

    assert drains.set_by_name([Metric.__init__.__code__]) is None


def test_the_cause_of_an_exception_is_followed() -> None:
    first, second = ValueError("first"), ValueError("second")
    second.__cause__ = first
    assert (".__cause__", first) in list(children(second))


@pytest.mark.parametrize(
    ("body", "cut"),
    [
        ("self.q = torch.cat([self.q, new])[-size:]", HAS_COLUMNS),
        ("self.q = torch.cat([self.q, new])[-self.size:].clone()", HAS_COLUMNS),
        ("self.q = torch.cat([self.q, new])\nif len(self.q) > size:\n    self.q = self.q[-size:]", True),
        ("self.q = self.q[:size]", True),
        ("self.q = self.q[64:256]", True),
        ("self.q = self.q[-640:]", True),
        ("self.q = self.q[extra:]", True),
        ("self.q = self.q[1:]", False),
        ("self.q = self.q[1:, :8]", True),
        ("self.q = torch.cat([self.q, new[:8]])", False),
        ("self.q = torch.cat([self.q, new[:8].float()], dim=0)", False),
        ("self.q = torch.cat([self.q, self.net(new)[:, :1]])", False),
        ("self.q = torch.cat([self.q, new.detach()[:1].clone()]) * 1.0", False),
        ("self.q = torch.cat([self.q, new])", False),
        ("self.q = torch.cat([self.q, new])\nold = self.q[-size:]", False),
        ("self.q = old[:3]", False),
    ],
)
def test_a_tensor_that_is_cut_to_a_slice_is_known(body: str, cut: bool) -> None:
    assert drains.is_cut([code_of(body)], "q", attribute=True) is cut
    assert not drains.is_cut([code_of(body)], "other", attribute=True)


@pytest.mark.parametrize(
    ("body", "handed_out"),
    [
        ("if old:\n    yield from self.kept\nself.kept.append(new)\nyield new", True),
        ("for one in self.kept:\n    yield one\nself.kept.append(new)", True),
        ("self.kept.append(new)\nyield new", False),
        ("for one in self.kept:\n    print(one)\nself.kept.append(new)", False),
        ("yield from self.kept", False),
    ],
)
def test_a_generator_that_hands_out_what_it_keeps_is_known(body: str, handed_out: bool) -> None:
    assert drains.is_handed_out([code_of(body)], "kept", attribute=True) is handed_out


def frames_of_two_calls() -> tuple[FrameType, FrameType]:
    def inner() -> FrameType:
        return sys._getframe()

    def outer() -> tuple[FrameType, FrameType]:
        held = object()  # noqa: F841 - retained by the frame
        return inner(), sys._getframe()

    return outer()


def test_a_frame_that_somebody_keeps_leads_to_its_callers_that_have_returned() -> None:
    inner, outer = frames_of_two_calls()
    labels = dict(children(inner))
    assert labels[" caller"] is outer
    assert " outer() local 'held'" in dict(children(outer))


def test_a_running_frame_is_told_from_one_that_has_returned() -> None:
    inner, outer = frames_of_two_calls()
    assert not is_running(inner) and not is_running(outer)
    assert is_running(sys._getframe())
    assert " caller" not in dict(children(sys._getframe())), "its caller is running"
    began, ended, frames = threading.Event(), threading.Event(), []

    def other() -> None:
        frames.append(sys._getframe())
        began.set()
        ended.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert began.wait(60)
    assert is_running(frames[0])
    ended.set()
    thread.join()
    assert not is_running(frames[0])


@pytest.mark.parametrize(
    ("tensors", "elements", "fills"),
    [
        ([3, 7, 11], [40, 40, 40], True),
        ([3, 7, 11], [3, 7, 11], False),
        ([42, 50, 70], [36, 36, 36], True),
        ([30, 60, 90], [40, 40, 40], False),
        ([3], [40], False),
    ],
)
def test_tensors_that_fill_places_of_a_container_are_known(
    tensors: list[int], elements: list[int], fills: bool
) -> None:
    seen = [SimpleNamespace(tensors=one, elements=size) for one, size in zip(tensors, elements, strict=True)]
    assert fills_slots(seen) is fills  # type: ignore[arg-type]


def limits_by_length(pool, size, image):
    if len(pool) < size:
        pool.append(image)


def prints_every_fiftieth(pool, image):
    pool.append(image)
    if len(pool) % 50 == 0:
        print(len(pool))


def compares_elsewhere(pool, size):
    return len(pool) < size


@pytest.mark.parametrize(
    ("function", "limited"),
    [(limits_by_length, True), (prints_every_fiftieth, False), (compares_elsewhere, False)],
)
def test_a_limit_in_the_code_is_found(function, limited: bool) -> None:
    assert drains.is_limited([function.__code__], "pool") is limited


@pytest.mark.parametrize(
    ("body", "looked_up"),
    [
        ("if size not in self.masks:\n    self.masks[size] = new\nreturn self.masks[size]", True),
        ("old = self.masks.get(size)\nif old is None:\n    self.masks[size] = old = new\nreturn old", True),
        ("return self.masks.setdefault(size, new)", True),
        ("self.masks[size] = new", False),
        ("if size in old:\n    self.masks[size] = new", False),
        ("return self.masks.get(size)", False),
    ],
)
def test_a_cache_that_is_asked_before_it_is_filled_is_known(body: str, looked_up: bool) -> None:
    assert drains.is_looked_up([code_of(body)], "masks", attribute=True) is looked_up


def seen(iteration: int, elements: int) -> Observation:
    return Observation(iteration, iteration, elements, 0, elements, 0, False, 0, 0, [], elements=elements)


def test_fewer_keys_than_iterations_came_again() -> None:
    assert keys_recur([seen(4, 2), seen(40, 8)])
    assert not keys_recur([seen(4, 4), seen(40, 40)]), "a key for each step never comes again"


def epoch(data, size):
    total = 0
    losses, sums = [], []
    for row in data:
        losses.append(row)
        sums.append(size)
        total += size
    return losses, sums, total


def epochs(data):
    for size in range(3):
        epoch(data, size)


def once(data):
    epoch(data, 1)


@pytest.mark.parametrize(
    ("name", "caller", "ends"),
    [
        ("losses", epochs, True),
        ("sums", epochs, True),
        ("total", epochs, False),
        ("data", epochs, False),
        ("losses", once, False),
    ],
)
def test_a_container_of_each_call_ends_with_it(name: str, caller: Callable[..., None], ends: bool) -> None:
    code = caller.__code__
    lines = [line.number for line in lines_of(code) if "epoch" in line.loads]
    found = drains.begun_by_call(epoch.__code__, name, code, lines[0])
    assert (found is not None) is ends
    assert found is None or (found.whole and found.number == epoch.__code__.co_firstlineno + 2)


@pytest.mark.parametrize(
    ("line", "cuts", "puts_into"),
    [
        ("old[0] = new", False, {"old"}),
        ("old[size] = new", False, {"old"}),
        ("old[(0, 1)] = new", False, {"old"}),
        ("new = old[2:5]", True, set()),
        ("new = old[1:, :8]", True, set()),
        ("new = old[2:size]", True, set()),
        ("old[2:5] = new", None, set()),  # cuts: a version of Python may have an instruction of its own for it
        ("old[..., 1:] = new", None, set()),
    ],
)
def test_slices_and_elements_are_told_apart_whether_constant_or_not(
    line: str, cuts: bool | None, puts_into: set[str]
) -> None:
    (found,) = [one for one in lines_of(code_of(line)) if one.loads]
    assert found.puts_into == puts_into
    assert cuts is None or found.cuts is cuts
