"""The simulator's tests stand on each other's files; those that ask the real allocator need the emulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def asked(emulated_gpu: None) -> Iterator[object]:
    """The real allocator of the torch that is installed."""
    from comparison import oracle

    with oracle() as process:
        yield process
