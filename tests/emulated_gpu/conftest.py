"""Programs that run in a Python of their own: allocator settings and device sizes are read once a process."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def on_the_emulated_gpu_only(emulated_gpu: None) -> None:
    """Nothing in this folder has anything to say of a real card."""


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """``run_python(code, NAME=value)`` gives what the code printed; a failure shows what it said on stderr."""

    def run(code: str, **environment: str) -> str:
        done = warm.run(textwrap.dedent(code), env={**os.environ, **environment}, cwd=tmp_path, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def shared_ledger(tmp_path: Path) -> str:
    """A ledger for the processes of one test: they share a GPU, and nobody else is on it."""
    return str(tmp_path / "ledger")
