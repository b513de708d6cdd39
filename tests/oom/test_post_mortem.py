"""The report of a run that ran out of memory is attached to the active runs of W&B and MLflow, with the real packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "backend"))
from running import RunningServer

pytestmark = pytest.mark.gpu
PROGRAM = """
import mlflow, torch, wandb
from torch import nn
from vramscope import agent
from vramscope.guard import guard
guard.raise_faults = True
wandb.init(project="p")
mlflow.start_run()
model = nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), 0.1)
agent.attach(model, run_id="diedwithtracker", name="died")
for step in range(40):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 38:
        FAIL
"""


def train(server: RunningServer, folder: Path, fail: str) -> list[Path]:
    """Run the program to its error; returns the reports that the trackers have stored."""
    variables = {
        "VRAMSCOPE_SERVER": server.url, "VRAMSCOPE_SPOOL_DIR": str(folder / "spool"), "WANDB_MODE": "offline",
        "WANDB_SILENT": "true", "WANDB_DIR": str(folder), "WANDB_DATA_DIR": str(folder / "data"),
        "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns", "MLFLOW_ALLOW_FILE_STORE": "true",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("FAIL", fail)], env=os.environ | variables, cwd=folder,
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback (most recent call last)" in done.stderr and "vramscope: a fault" not in done.stderr
    return [file for file in folder.rglob("*") if file.is_file() and b"Created by vramscope" in file.read_bytes()]


def test_a_death_is_attached(emulated_gpu: None, tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "server")
    try:
        found = train(server, tmp_path, 'torch.empty(1 << 50, dtype=torch.uint8, device="cuda")')
        report = server.http.get("/runs/diedwithtracker/report").text
    finally:
        server.stop()
    assert "mlruns" in {part for file in found for part in file.parts}, found
    assert "data" in {file.relative_to(tmp_path).parts[0] for file in found}, found
    for file in found:
        assert "Out of memory" in file.read_text() and "died (failed)" in file.read_text()
    assert "died (failed)" in report


def test_another_error_attaches_nothing(emulated_gpu: None, tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "server")
    try:
        assert train(server, tmp_path, 'raise ValueError("no")') == []
    finally:
        server.stop()
