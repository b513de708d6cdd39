"""What tests of the agent share: a server that only collects, and a folder of a test's own for what waits to be sent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package

from collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "spool"


@pytest.fixture(autouse=True)
def of_earlier_tests_nothing_is_seen(few_objects: None) -> None:
    """Scans and measurements of a test see the test's own objects, in whatever order the tests run."""
