"""An inference before a training leaves nothing behind in what is said of the training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from collector import Collector
from training import Arrived, run

from vramscope.protocol import messages

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(150)]

LAUNCH = "import sys; from vramscope.launch import main; sys.exit(main(sys.argv[1:]))"
INFER_AND_TRAIN = """
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()
with torch.no_grad():
    for _ in range(100):
        model(torch.zeros(8, 256, device="cuda"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_was_scanned_before_a_training_is_not_its_last_scan(
    collector: Collector, spool: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(INFER_AND_TRAIN)
    command = [sys.executable, "-c", LAUNCH, sys.executable, str(tmp_path / "train.py")]
    env = {**os.environ, "VRAMSCOPE_SERVER": collector.url, "VRAMSCOPE_SPOOL_DIR": str(spool)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "No sign of a leak: GPU memory after step 29 was no higher than after the second step." in done.stderr


def test_an_inference_alone_has_no_recording(collector: Collector, spool: Path) -> None:
    """Its end would take a snapshot, for which PyTorch loads its compiler."""
    calls = "for _ in range(100):\n    with torch.no_grad():\n        model(torch.zeros(8, 64, device=device))"
    run(f"agent.attach(model)\n{calls}\nagent.detach()", collector, spool)
    assert Arrived(collector).of(messages.Attached) and not Arrived(collector).of(messages.Piece)
