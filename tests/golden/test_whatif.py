"""Predictions under other allocator settings are those of the golden files."""

from __future__ import annotations

import pytest
from area_whatif import AREA, of_settings
from files import assert_same
from settings_compared import shared


@pytest.mark.xdist_group("whatif settings")
@pytest.mark.timeout(600)
def test_predictions_under_settings_are_golden(emulated_gpu: None) -> None:
    """Of the same runs that tests/whatif judges."""
    assert_same(AREA, of_settings(shared()))
