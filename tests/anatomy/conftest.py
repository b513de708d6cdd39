"""Trainings that were run under the agent, and what is true of them: once a session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests are imported by path: their neighbours are not packages
sys.path.insert(0, str(Path(__file__).parent))

from observed import Observed, shared


@pytest.fixture(scope="session")
def observed(emulated_gpu: None) -> dict[str, Observed]:
    """All of them; tests/golden compares what is said of the same."""
    return shared()
