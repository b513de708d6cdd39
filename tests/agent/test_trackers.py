"""Runs ``trackers_with_packages.py`` in a process of its own: the packages change ``__main__`` and bring many objects, of which
other tests of the process would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).with_name("trackers_with_packages.py")


def test_figures_reach_the_trackers() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", str(TESTS), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
