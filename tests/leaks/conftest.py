"""The processes that run the loops: one a device for the detector, one for the scales, each started when first asked."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # tests are imported by path: their neighbour is not a package

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
def watched() -> Iterator[dict[str, Child]]:
    """By device: a process that has used CUDA reads its floor there, and no longer from the C allocator."""
    children = {"cpu": Child(), "cuda": Child()}
    yield children
    for each in children.values():
        each.close()
