"""The processes that run the loops: one a device for the detector, one for the scales, each started when first asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package

from answers import Answers, shared
from child import Child


def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


@pytest.fixture(scope="session")
def scales() -> Iterator[Child]:
    """Runs loops on the GPU under the meter, where no detector was ever imported."""
    yield from child()


@pytest.fixture(scope="session")
def watched() -> Iterator[Answers]:
    """What the detector says of each loop; tests/golden compares the same answers."""
    yield shared()
    shared().close()
