"""A user's file with the public API passes mypy --strict, and at night basedpyright, and what is wrong in it is reported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
[mypy]
strict = true
follow_imports = silent
[mypy-torch.*,transformers.*,lightning.*,pytorch_lightning.*,accelerate.*]
follow_imports = skip
ignore_missing_imports = true
"""
"""The frameworks are left out: reading their sources takes a minute."""
PROGRAM = """
from __future__ import annotations

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

import vramscope
from vramscope import agent

session = agent.attach(object(), project="p", tags=["a"], config={"lr": 1e-3}, phases="every", budget=0.02)
assert_type(session.run_id, str)
session.log(loss=0.5)
with session.phase("eval"):
    session.step()
agent.detach()


@vramscope.measure(report=print)
def evaluate(batch: list[int]) -> float:
    return 0.5


assert_type(evaluate([1]), float)
with vramscope.measure() as measured:
    assert_type(measured.peak_bytes, int | None)
with vramscope.Client() as client:
    for run in client.runs(project="p", state="finished"):
        assert_type(run.name, str)
        assert_type(run.facts.peak_allocated_bytes, int | None)
    steps = client.run("x").series(["forward_peak_allocated_bytes"])
    assert_type(steps.x, npt.NDArray[np.float64])
    assert_type(client.run("x").table("phases", rank=0).missing, str)
    assert_type(len(client.compare("x", "y")), int)
"""
MISTAKES = """
import vramscope
from vramscope import agent

agent.attach(phases="never")
agent.attach(projekt="p")
agent.attach().log(loss="high")
vramscope.measure(report=3)
vramscope.Client().run(7)
vramscope.Client().run("x").table("steps", rang=0)
"""


def mypy(folder: Path, program: str) -> list[int]:
    """Lines with an error. A user has the package installed; here its sources are read."""
    (folder / "mypy.ini").write_text(CONFIG)
    (folder / "user.py").write_text(program)
    words = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "user.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "agent")}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=170)
    assert done.returncode in (0, 1), done.stderr
    found = re.findall(r"^(\S+?):(\d+): error: (.*)", done.stdout, re.MULTILINE)
    assert all(file == "user.py" for file, _, _ in found), done.stdout
    return sorted({int(line) for _, line, _ in found})


def test_users_file_passes_strict_mypy(tmp_path: Path) -> None:
    assert mypy(tmp_path, PROGRAM) == []


def test_mistakes_are_reported(tmp_path: Path) -> None:
    lines = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if line and "import" not in line]
    assert mypy(tmp_path, MISTAKES) == lines


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_basedpyright_agrees(tmp_path: Path) -> None:
    """It is pyright with a JavaScript engine in a wheel. Pyright itself would download one when it starts."""
    tools = tmp_path / "tools"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tools), "basedpyright"]
    subprocess.run(install, check=True, capture_output=True)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT / "agent")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    lines = {}
    for name, program in (("user.py", PROGRAM), ("mistakes.py", MISTAKES)):
        (tmp_path / name).write_text(program)
        words = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, "--outputjson", name]
        environment = {**os.environ, "PYTHONPATH": str(tools)}
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        found = json.loads(done.stdout)
        assert found["summary"]["filesAnalyzed"] == 1, done.stdout
        lines[name] = sorted({one["range"]["start"]["line"] + 1 for one in found["generalDiagnostics"]})
    wrong = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if line and "import" not in line]
    assert lines == {"user.py": [], "mistakes.py": wrong}


@pytest.mark.parametrize("package", ["agent/vramscope"])
def test_package_says_that_it_is_typed(package: str) -> None:
    """Without the marker mypy reads no types of an installed package."""
    assert (ROOT / package / "py.typed").is_file()
