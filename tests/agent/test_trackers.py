"""Runs ``trackers_with_packages.py`` and ``trackers_at_night.py`` in processes of their own: the packages change ``__main__`` and
bring many objects, of which other tests of the process would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("trackers_with_packages.py")
AT_NIGHT = Path(__file__).with_name("trackers_at_night.py")


def run_tests(file: Path, *words: str, **variables: str) -> str:
    """Run a file of tests with these words; returns what pytest prints."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | variables
    command = [sys.executable, "-m", "pytest", str(file), "-q", "-p", "no:cacheprovider", *words]
    done = subprocess.run(command, env=environment, cwd=TESTS.parents[2], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.gpu  # the size of the card is one of the figures
def test_figures_reach_the_trackers() -> None:
    printed = run_tests(TESTS)
    assert "skipped" not in printed, printed


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("tool", "package"),
    [
        ("trackio", "trackio"),
        ("comet", "comet_ml"),
        ("clearml", "clearml"),
        ("aim", "aim"),
        ("neptune", "neptune"),
        ("swanlab", "swanlab"),
    ],
)
def test_figures_reach_the_tracker_that_is_installed_for_this_test(tool: str, package: str, tmp_path: Path) -> None:
    """Each in a folder of its own: their dependencies exclude one another."""
    folder = tmp_path / "installed"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, package], check=True)
    paths = os.pathsep.join([str(folder), *sys.path])
    printed = run_tests(AT_NIGHT, "-k", f"test_{tool}", PYTHONPATH=paths)
    assert "1 passed" in printed, printed
