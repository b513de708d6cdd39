"""A scan ends in time: what a pass over all objects costs is known before it is made, and what is left out is said.

Time stands still in these tests but for those passes, each of which takes as long as the test says.
"""

import gc
import json
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import held_in_many_ways
import pytest
import torch
import warm

from vramscope.leaks.scan import container_sampling, find_holders, object_children, paths, referrers, time_budget
from vramscope.leaks.scan import tensors as sweep
from vramscope.leaks.scan.scanner import SCAN_SECONDS, Scanner
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import Costs, TimeBudget
from vramscope.process import live_objects, name_roots

SECONDS = SCAN_SECONDS

OBJECTS_OF_A_TRAINING = 300_000
"""Tracked objects of a process that trains. Of few what its first look makes would be several times as many."""


class Passes:
    """The collector's passes, on a clock of their own: each is noted, and takes ``seconds``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.seconds = 0.0
        self.made: list[str] = []
        self.costs = Costs(lambda: self.now)

    def get_objects(self, generation: int | None = None) -> list:
        if generation == 2:  # (the others are young, and few)
            self._made("objects")
        return gc.get_objects(generation=generation)

    def get_referrers(self, *targets: object) -> list:
        self._made("referrers")
        return gc.get_referrers(*targets)

    def _made(self, name: str) -> None:
        self.made.append(name)
        self.now += self.seconds

    def scan(self) -> find_holders.FoundHolders:
        return find_holders.find_holders(TensorKinds(), TimeBudget(SECONDS, self.costs))


@pytest.fixture(autouse=True)
def no_objects_are_too_many(monkeypatch):
    """Variables of what other tests loaded lead to more than usual."""
    monkeypatch.setattr(paths, "MOST_OBJECTS", 10**9)


@pytest.fixture
def passes(monkeypatch, few_objects):
    made = Passes()
    counted = SimpleNamespace(**{name: getattr(gc, name) for name in ("get_referents", "get_count", "is_tracked")})
    counted.get_objects, counted.get_referrers = made.get_objects, made.get_referrers
    monkeypatch.setattr(live_objects, "gc", counted)
    monkeypatch.setattr(referrers, "gc", counted)
    monkeypatch.setattr(time_budget, "ORDINARY", 0)
    ordinary = [[] for _ in range(OBJECTS_OF_A_TRAINING)]
    gc.collect()  # (into the oldest generation)
    made.costs.counted(len(gc.get_objects()))
    yield made
    assert len(ordinary) == OBJECTS_OF_A_TRAINING


def names(sight: find_holders.FoundHolders) -> set[str]:
    return {group.holder.name for group in sight.groups}


def test_a_pass_that_would_not_end_in_time_is_not_begun_and_variables_are_looked_at_all_the_same(passes):
    kept = [torch.zeros(64, 64) for _ in range(5)]
    model = torch.nn.BatchNorm1d(4096)
    passes.costs.measured(time_budget.PASS, 1, 1.0)
    passes.costs.counted(len(gc.get_objects()))
    sight = passes.scan()
    assert passes.made == []
    assert "kept" in names(sight)
    assert not any("model" in name for name in names(sight))  # its buffers are known as such
    assert "all but those that your variables lead to" in sight.not_scanned[0]
    assert len(kept) == 5 and model.training


def test_one_that_turns_out_to_be_dear_is_the_last_of_its_look_and_the_next_look_knows(passes):
    kept = [torch.zeros(64, 64) for _ in range(5)]
    newer = [torch.zeros(64, 64) for _ in range(find_holders.LEAST_TENSORS // time_budget.LARGE_SHARE)]  # (the minimum)
    passes.seconds = 0.8 * SECONDS
    sight = passes.scan()
    assert passes.made == ["objects"]
    assert "kept" not in names(sight) and "the older ones" in sight.not_scanned[0]
    assert "kept" in names(passes.scan()) and passes.made == ["objects"]
    assert len(kept) == 5 and newer


def test_two_passes_in_a_row_that_were_dear_are_the_last(passes):
    passes.seconds = 0.8 * SECONDS
    for _ in range(8):
        passes.scan()
    assert passes.made == ["objects"] * 2


def test_objects_are_counted_where_more_of_them_would_be_too_many(passes):
    """A quarter of all blocks of memory are objects of the collector's, or all: a pass over the latter would not end in time."""
    objects = len(gc.get_objects())
    assert 2 * objects < sys.getallocatedblocks()
    for fit, made in ((2.0, ["objects", "objects"]), (0.9, ["objects"])):
        passes.costs, passes.made = Costs(lambda: passes.now), []
        passes.costs._of_an_object[time_budget.PASS] = time_budget.OBJECTS * SECONDS / (objects * fit)
        passes.scan()
        assert passes.made == made


def test_it_is_tried_again_in_time_as_it_may_have_been_measured_in_a_bad_moment(passes):
    passes.seconds = 0.8 * SECONDS
    passes.scan()
    passes.seconds = 0.0
    for _ in range(10):
        sight = passes.scan()
    assert passes.made == ["objects"] * len(passes.made) and len(passes.made) > 1
    assert sight.not_scanned == []


@pytest.mark.parametrize(("seconds", "levels"), [(0.6 * SECONDS, 1), (0.3 * SECONDS, 3), (0.0, 6)])
def test_who_refers_is_asked_level_by_level_as_long_as_one_more_ends_in_time(passes, seconds, levels):
    tensor = torch.zeros(64, 64)
    above = [tensor]
    for _ in range(6):
        above = [above]
    passes.seconds = seconds
    passes.costs.measured(time_budget.REFERRERS, passes.costs.objects, seconds)
    _, _, whole = referrers._old_ancestors([tensor], TimeBudget(SECONDS, passes.costs), set())
    assert set(passes.made) == {"referrers"} and len(passes.made) >= min(levels, 2)
    assert len(passes.made) * seconds <= SECONDS
    assert whole is False if seconds else len(passes.made) == referrers.DEEPEST


def test_young_objects_are_not_listed_where_a_user_has_switched_the_collector_off_for_long(passes):
    passes.costs.measured(time_budget.YOUNG, 1, 1.0)
    closure, whole = referrers._young_ancestors([torch.zeros(1)], set(), TimeBudget(SECONDS, passes.costs))
    assert (passes.made, len(closure), whole) == ([], 1, False)


def test_tensors_beyond_the_first_few_thousand_are_looked_at_while_there_is_time(passes, monkeypatch):
    many = [torch.empty(1) for _ in range(2_000)]
    assert passes.scan().not_scanned == []
    ticks = iter(range(1_000_000))
    passes.costs.clock = lambda: next(ticks) * SECONDS / 12
    first = passes.scan().not_scanned[0]
    assert "the older ones" in first
    monkeypatch.setattr(time_budget, "ORDINARY", 10**9)
    assert "the older ones" not in " ".join(passes.scan().not_scanned)
    assert len(many) == 2_000


def test_more_targets_make_a_pass_dearer_and_a_measured_one_is_reckoned_for_one(passes):
    costs = Costs()
    costs.measured(time_budget.REFERRERS, 1_000, 2e-3, targets=1 + time_budget.TARGETS)
    assert costs.of(time_budget.REFERRERS, 1_000) == pytest.approx(1e-3)
    assert costs.of(time_budget.REFERRERS, 500, targets=1 + time_budget.TARGETS) == pytest.approx(1e-3)


def test_the_newest_tensors_are_looked_at_first(monkeypatch):
    """What leaks is new; where there are too many, the old ones are left out."""
    old = [torch.zeros(64, 64) for _ in range(50)]
    gc.collect()
    new = [torch.zeros(64, 64) for _ in range(20)]
    monkeypatch.setattr(sweep, "MOST_TENSORS", 40)
    seen = sweep.sweep(TensorKinds(), TimeBudget(60.0))
    ids = {id(tensor) for tensor in seen.kept}
    assert all(id(tensor) in ids for tensor in new) and "the older ones" in seen.not_scanned
    assert not all(id(tensor) in ids for tensor in old)


def test_of_a_container_of_a_million_only_the_ends_are_touched():
    class Counted:
        touched = 0

        def __iter__(self):
            for _ in range(10**6):
                Counted.touched += 1
                yield None

    half = object_children.MOST_OF_A_CONTAINER // 2
    assert len(object_children._ends(iter(Counted()), lambda: iter(Counted()), 10**6)) == 2 * half
    assert len(object_children._ends(iter(Counted()), None, 10**6)) == 2 * half
    assert Counted.touched == 4 * half
    numbers = list(range(10**5))
    assert [child for _, child in object_children.children(numbers)] == numbers[:half] + numbers[-half:]


def test_tensors_between_the_ends_of_a_long_container_are_known_to_be_in_it():
    """Otherwise each scan would ask the whole process who refers to them."""
    plain = [torch.empty(1) for _ in range(3 * object_children.MOST_OF_A_CONTAINER)]
    records = [{"x": (torch.empty(1), number)} for number in range(2 * object_children.MOST_OF_A_CONTAINER)]
    wanted = {id(tensor) for tensor in plain} | {id(record["x"][0]) for record in records}
    source = [
        name_roots.Root("local", name, value, None, None, None, "f") for name, value in (("a", plain), ("b", records))
    ]
    found = paths.find([source], wanted, TimeBudget(60.0))
    counts = len(found.paths), len(found.between), len(wanted)
    assert counts == (
        2 * object_children.MOST_OF_A_CONTAINER,
        3 * object_children.MOST_OF_A_CONTAINER,
        5 * object_children.MOST_OF_A_CONTAINER,
    )
    assert found.complete and found.paths.keys().isdisjoint(found.between)
    assert all(inside.is_whole for _, inside in found.long)


def full_of_holes(tensors: int, *, of: int) -> list[object]:
    """Of these elements the last ones hold a tensor, and a few of the others."""
    held: list[object] = [None] * of
    held[: 3 * of // 4 : of // 8] = [{"loss": torch.zeros(64, 64)} for _ in range(6)]
    held[-(tensors - 6) :] = [torch.zeros(64, 64) for _ in range(tensors - 6)]
    return held


@pytest.mark.parametrize("left_out", [False, True])
def test_of_a_long_list_with_holes_those_count_that_hold_something(monkeypatch, left_out):
    """Also where the look leaves out the older tensors, of which it then does not know who has them."""
    losses = full_of_holes(103, of=10_000)
    if left_out:
        monkeypatch.setattr(sweep, "MOST_TENSORS", 20)
    sight = find_holders.find_holders(TensorKinds(), TimeBudget(60.0))
    group = next(group for group in sight.groups if group.holder.name == "losses")
    assert (group.tensors, group.held_bytes) == (103, 103 * 64 * 64 * 4)
    assert ("the older ones" in " ".join(sight.not_scanned)) == left_out
    assert len(losses) == 10_000


def test_records_in_a_long_list_are_read_after_objects_that_are_too_deep_to_read():
    """These come last of all, and ended the search."""
    deep: object = {"end": [object()]}
    for _ in range(paths.DEEPEST):
        deep = [{"next": deep}]
    losses = [{"loss": torch.zeros(64, 64)} for _ in range(3_000)]
    sight = find_holders.find_holders(TensorKinds(), TimeBudget(60.0))
    group = next(group for group in sight.groups if group.holder.name == "losses")
    assert (group.tensors, group.held_bytes) == (3_000, 3_000 * 64 * 64 * 4)
    assert len(losses) == 3_000 and deep


def test_of_elements_for_which_no_time_is_left_a_sample_tells():
    is_tensor = {id(torch.Tensor)}.__contains__
    half_full = [torch.empty(1) if number % 2 else None for number in range(20_000)]
    seen = container_sampling.contents(half_full, len(half_full), set(), set(), is_tensor, lambda: True)
    assert not seen.is_whole and seen.looked_through == container_sampling.AT_ONCE
    assert seen.tensors == pytest.approx(10_000, rel=0.1)
    some = {id(half_full[-1]), id(half_full[-101])}
    assert container_sampling.contents(half_full, len(half_full), set(), some, is_tensor, lambda: True).wanted == some


@pytest.mark.parametrize("kind", [list, tuple, deque, dict.fromkeys, lambda things: dict(enumerate(things))])
def test_a_long_container_of_any_kind_is_looked_through_to_its_end(kind):
    tensors = [torch.empty(1) for _ in range(5_000)]
    container = kind(tensors)
    seen = container_sampling.contents(
        container, 5_000, set(), set(map(id, tensors)), {id(torch.Tensor)}.__contains__, lambda: False
    )
    assert (seen.tensors, len(seen.wanted), seen.is_whole) == (5_000, 5_000, True)


@pytest.mark.parametrize("way", held_in_many_ways.WAYS)
@pytest.mark.parametrize("objects", held_in_many_ways.OBJECTS)
def test_all_parts_of_a_look_together_end_in_its_time(way, objects):
    done = warm.run(Path(held_in_many_ways.__file__).read_text(), arguments=[way, objects])
    assert done.returncode == 0, done.stderr
    scans = json.loads(done.stdout)
    assert len(scans) == 3 and all(left_out for _, left_out in scans)
    assert all(0 < seconds <= held_in_many_ways.WHOLE * held_in_many_ways.SECONDS for seconds, _ in scans), scans


def test_who_has_many_objects_in_variables_hears_of_a_cycle_all_the_same(passes, monkeypatch):
    """What variables lead to takes all the time of the look, and more."""
    monkeypatch.setattr(time_budget, "ORDINARY", 10**9)
    look_into = paths.children

    def slowly(*args):
        passes.now += SECONDS / 1_000
        return look_into(*args)

    monkeypatch.setattr(paths, "children", slowly)
    many = [[[[number] for number in range(50)] for _ in range(50)] for _ in range(50)]
    knot = SimpleNamespace(tensor=torch.zeros(64, 64))
    knot.me = knot
    del knot
    scanner = Scanner(TensorKinds())
    scanner._costs = passes.costs
    looked = scanner.scan(0, lambda optimizer: False, None)
    assert "a part of your variables, because there were too many objects" in looked.not_scanned
    assert any(group.cyclic for group in looked.groups)
    assert len(many) == 50
