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
