"""The process that forks itself for each marked test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vramscope_server.pytest_plugin.preloaded_process import NotEnded, PreloadedProcess

SUITE = """
import os, sys, time

def test_passes():
    assert "torch" in sys.modules
    assert os.getcwd() == os.environ["FOLDER"]
    print("parent", os.getppid())

def test_fails():
    assert os.environ["WORD"] == "right", os.environ["WORD"]

def test_dies():
    os._exit(7)

def test_never_ends():
    print("begun", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def process() -> Iterator[PreloadedProcess]:
    process = PreloadedProcess()
    yield process
    process.close()


def test_tests_share_a_process_until_the_environment_changes(process: PreloadedProcess, tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)

    def run(test: str, word: str = "wrong", timeout_s: float = 120):
        environment = {**os.environ, "FOLDER": str(tmp_path), "WORD": word}
        words = [f"test_suite.py::{test}", "-sq", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
        return process.run(words, tmp_path, environment, tmp_path / "output", timeout_s)

    first, second = run("test_passes"), run("test_passes")
    assert first.exit_code == 0, first.output
    parents = [next(line for line in one.output.splitlines() if "parent" in line) for one in (first, second)]
    assert parents[0] == parents[1], "one process forked both"
    failed = run("test_fails")
    assert failed.exit_code == 1 and "AssertionError: wrong" in failed.output
    assert run("test_dies").exit_code == 7
    assert run("test_fails", word="right").exit_code == 0
    with pytest.raises(NotEnded, match="begun"):
        run("test_never_ends", word="right", timeout_s=10)
    assert run("test_passes", word="right").exit_code == 0, "a new process after the one that was ended"
