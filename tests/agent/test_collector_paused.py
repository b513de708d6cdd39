"""The garbage collector is kept quiet, left as the program set it, and what the program set is known meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from vramscope.process.gc_pause import collect_youngest, collector_paused, collector_runs


@pytest.fixture
def as_before() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.usefixtures("as_before")
def test_a_pause_leaves_what_the_program_set_and_tells_it(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    assert collector_runs() is enabled
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert collector_runs() is enabled
        assert not gc.isenabled() and collector_runs() is enabled, "a pause within a pause ends neither"
    assert gc.isenabled() is enabled and collector_runs() is enabled


@pytest.mark.usefixtures("as_before")
def test_the_youngest_objects_are_collected_without_a_collection_of_older_ones() -> None:
    gc.enable()
    gc.collect()  # so that none is due
    young = [[] for _ in range(100)]
    older = [gc.get_stats()[generation]["collections"] for generation in (1, 2)]
    collect_youngest()
    assert [gc.get_stats()[generation]["collections"] for generation in (1, 2)] == older
    assert not {id(one) for one in young} & {id(one) for one in gc.get_objects(generation=0)}


@pytest.mark.usefixtures("as_before")
def test_nothing_is_collected_where_the_program_switched_the_collector_off() -> None:
    gc.disable()
    young = [[] for _ in range(10)]
    collect_youngest()
    assert {id(one) for one in young} <= {id(one) for one in gc.get_objects(generation=0)}
