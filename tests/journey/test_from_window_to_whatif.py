"""From a training that fragments its memory to the settings that would have helped, and to the training that proves it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import warm

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]

VRAMSCOPE = [sys.executable, "-m", "vramscope_server"]

TRAINING = """
import json, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for step in range(3):
    rows = 2_000 + 9_000 * step          # lengths that vary: what one step frees does not fit the next
    kept.append(torch.empty(3_000_000 + 2_500_000 * step, device="cuda"))
    model(torch.empty(rows, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""
SETTINGS = ("expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:2")


def train(server: str, folder: Path, name: str) -> tuple[int, int]:
    """Train under ``vramscope run``; what PyTorch itself says of its peaks (allocated, reserved)."""
    script = folder / "train.py"
    script.write_text(TRAINING)
    words = [*VRAMSCOPE, "run", "--server", server, "--name", name, "--", sys.executable, str(script)]
    env = {**os.environ, "VRAMSCOPE_SPOOL_DIR": str(folder / "spool"), "PYTORCH_CUDA_ALLOC_CONF": ""}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr
    allocated, reserved = json.loads(done.stdout.strip().splitlines()[-1])
    return allocated, reserved


def tried(settings: str) -> tuple[int, int]:
    """The same of the training with these settings, which nobody watches."""
    done = warm.run(TRAINING, env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": settings})
    assert done.returncode == 0, done.stderr
    allocated, reserved = json.loads(done.stdout)
    return allocated, reserved


def whatif(server: str, run: str, *settings: str) -> list[dict[str, Any]]:
    words = [*VRAMSCOPE, "whatif", run, "--server", server, "--json"]
    done = subprocess.run(
        [*words, *(word for conf in settings for word in ("--conf", conf))], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def test_what_would_have_been_is_what_comes_when_it_is_tried(server: str, tmp_path: Path) -> None:
    """All steps of this run are recorded, so there is no reason for any difference: allocated and reserved, to the byte."""
    allocated, reserved = train(server, tmp_path, "as it is")
    rows = whatif(server, "as it is", *SETTINGS)
    recorded, *others = rows
    assert recorded["recorded"] and recorded["conf"] == ""
    assert recorded["replay_residual_bytes"] == 0
    assert (recorded["peak_allocated_bytes"], recorded["peak_reserved_bytes"]) == (allocated, reserved)
    measured = {conf: tried(conf) for conf in SETTINGS}
    assert {row["conf"]: (row["peak_allocated_bytes"], row["peak_reserved_bytes"]) for row in others} == measured
    assert min(r for _, r in measured.values()) < reserved < max(r for _, r in measured.values()), (
        "some help, some do harm"
    )
