"""What takes minutes, and runs with ``-m slow`` alone: held-out deaths, and the tables of the documents."""

from __future__ import annotations

import importlib

import pytest
from files import assert_same


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("area", ["held_out", "tables"])
def test_a_slow_area_is_golden(area: str, emulated_gpu: None) -> None:
    module = importlib.import_module(f"area_{area}")
    for name, result in getattr(module, "check", module.compute)().items():
        assert_same(name, result)
