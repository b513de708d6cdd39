"""The set-up chooses the right torch and does nothing twice; in CI, a skipped test is a failed one."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def environment():
    spec = importlib.util.spec_from_file_location("environment", ROOT / ".ci" / "environment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("asked", "has_gpu", "system_torch", "machine", "chosen"),
    [
        ("auto", True, True, "x86_64", "the system's"),
        ("auto", True, False, "x86_64", "plain"),
        ("auto", False, False, "x86_64", "emulated"),
        ("auto", False, False, "aarch64", "cpu"),
        ("emulated", True, True, "x86_64", "emulated"),
        ("none", False, False, "x86_64", "cpu"),
    ],
)
def test_the_machines_own_gpu_comes_first(environment, monkeypatch, asked, has_gpu, system_torch, machine, chosen):
    """A real GPU with its torch, else a real GPU, else the emulated one, else none."""
    monkeypatch.setattr(environment, "has_gpu", lambda: has_gpu)
    monkeypatch.setattr(environment, "system_torch_sees_gpu", lambda: system_torch)
    monkeypatch.setattr(environment.platform, "system", lambda: "Linux")
    monkeypatch.setattr(environment.platform, "machine", lambda: machine)
    assert environment.kind_of_torch(asked) == chosen


def test_without_gcc_it_says_what_to_do(environment, monkeypatch):
    """Rather than fetch gigabytes that nobody asked for."""
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    monkeypatch.setattr(environment.platform, "machine", lambda: "x86_64")
    with pytest.raises(SystemExit, match="needs gcc"):
        environment.kind_of_torch("auto")


def test_a_step_is_done_once_for_the_same_inputs(environment, monkeypatch, tmp_path):
    """And again when they change, or when it failed."""
    monkeypatch.setattr(environment, "STAMPS", tmp_path / "stamps")
    done = []
    for inputs in (["a"], ["a"], ["b"]):
        environment.once("step", inputs, "a step", lambda inputs=inputs: done.append(inputs))
    assert done == [["a"], ["b"]]

    def fails():
        done.append("failed")
        raise SystemExit("no network")

    for _ in range(2):
        with pytest.raises(SystemExit):
            environment.once("other", ["a"], "another step", fails)
    assert done[2:] == ["failed", "failed"]


TESTS = """
import pytest

def test_passes(): pass

@pytest.mark.skipif(True, reason="no browser")
def test_needs_a_browser(): pass

@pytest.mark.realgpu
@pytest.mark.skipif(True, reason="no card")
def test_needs_a_card(): pass
"""


def run_pytest(folder, *arguments, **environment):
    (folder / "test_some.py").write_text(TESTS)
    for name in ("conftest.py", "hidden_objects.py", "selection.py", "slow_tests.json"):
        shutil.copy(ROOT / "tests" / name, folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", folder, *arguments, folder],
        env={k: v for k, v in {**os.environ, **environment}.items() if not k.startswith("PYTEST_") and v},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_in_ci_only_the_tests_for_a_real_card_may_be_skipped(tmp_path, workers):
    """The browser's absence fails the session, and is named; the card's does not."""
    done = run_pytest(tmp_path, *workers, CI="true")
    assert done.returncode == 1, done.stdout
    named = done.stdout.split("CI does not allow")[1]
    assert "test_needs_a_browser" in named
    assert "test_needs_a_card" not in named
    assert run_pytest(tmp_path, *workers, "-k", "card or passes", CI="true").returncode == 0


def test_elsewhere_a_skip_is_a_skip(tmp_path):
    assert run_pytest(tmp_path, CI="").returncode == 0
