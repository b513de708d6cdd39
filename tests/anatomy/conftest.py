"""Trainings under the agent with ground truth, run once per session."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # tests are imported by path: their neighbours are not packages
sys.path.insert(0, str(Path(__file__).parent))

from observed import Observed, shared


@pytest.fixture(scope="session")
def observed(emulated_gpu: None) -> dict[str, Observed]:
    """All observed trainings. tests/golden uses the same ones."""
    return shared()
