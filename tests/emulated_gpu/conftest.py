"""Programs that run in a Python of their own: allocator settings and device sizes are read once a process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def on_the_emulated_gpu_only(emulated_gpu: None) -> None:
    """Nothing in this folder has anything to say of a real card."""


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """``run_python(code, NAME=value)`` gives what the code printed; a failure shows what it said on stderr."""

    def run(code: str, **environment: str) -> str:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", script],
            env={**os.environ, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def shared_ledger(tmp_path: Path) -> str:
    """A ledger for the processes of one test: they share a GPU, and nobody else is on it."""
    return str(tmp_path / "ledger")
