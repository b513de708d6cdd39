"""The garbage collector is kept quiet, left as the program set it, and what the program set is known meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from vramscope.process.gc_pause import collector_paused, collector_runs


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
