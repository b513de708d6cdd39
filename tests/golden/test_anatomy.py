"""Categories, advice and predictions of recorded trainings are those of the golden files."""

from __future__ import annotations

import pytest
from area_anatomy import AREA, of_all
from files import assert_same
from observed import shared


@pytest.mark.xdist_group("anatomy")
@pytest.mark.timeout(600)
def test_what_is_said_of_recorded_trainings_is_golden(emulated_gpu: None) -> None:
    """Of the same recordings that tests/anatomy judges."""
    assert_same(AREA, of_all(shared()))
