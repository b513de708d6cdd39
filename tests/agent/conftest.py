"""What tests of the agent share: a server that only collects, and a folder of a test's own for what waits to be sent."""

from __future__ import annotations

import gc
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


@pytest.fixture
def few_objects() -> Iterator[None]:
    """Hide all earlier objects from the scans of a test.

    A process that has run hundreds of tests has half a million objects. A scan would take its whole time, and leave some out.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
