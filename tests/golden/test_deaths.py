"""Verdicts on the staged out-of-memory deaths are those of the golden files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from area_deaths import AREA, IN_SUITE, compared
from deaths import Death
from files import assert_same, recorded
from outcomes import Outcomes, shared

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("deaths")]


@pytest.fixture(scope="session")
def outcomes() -> Iterator[Outcomes]:
    yield shared()
    shared().close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("death", IN_SUITE, ids=lambda death: death.name.replace(" ", "-"))
def test_the_verdict_is_the_golden_one(death: Death, outcomes: Outcomes, emulated_gpu: None) -> None:
    """Of the same run that tests/oom judges."""
    assert_same(AREA, compared(death, outcomes), entries=[death.name])


def test_golden_deaths_are_those_of_the_suite() -> None:
    assert sorted(recorded(AREA).facts) == sorted(death.name for death in IN_SUITE)
