"""Results that other tests have computed already, shared with them, so that comparing costs nothing extra."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package

import area_leaks  # noqa: F401 - its import makes the folders of the others known
from answers import Answers, shared


@pytest.fixture(scope="session")
def answers() -> Iterator[Answers]:
    yield shared()
    shared().close()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run only where ``-m`` asks for them."""
    if "slow" in config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
