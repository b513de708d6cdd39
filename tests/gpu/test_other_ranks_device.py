"""A rank that keeps memory on another rank's device, on two devices."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm

pytestmark = pytest.mark.gpu

PROGRAM = """
import json, os, sys
import torch
from torch import nn
from vramscope.techniques.observation import TrainingState
from vramscope.techniques.pitfalls.other_ranks_device import find

def found(model):
    training = TrainingState("loop", {}, [model], [model], [torch.optim.SGD(model.parameters(), 0.1)], None, 1, 0, 5)
    finding = find(training)
    return None if finding is None else [finding.kind, finding.text, finding.advice]

def main():
"""
RANK_1 = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def run(body: str, environment: dict[str, str], folder: Path) -> list[str] | None:
    done = warm.run(
        f"{PROGRAM}{textwrap.indent(textwrap.dedent(body), '    ')}\nmain()\n",
        env={**os.environ, "EMULATED_GPU_DEVICES": "2", "EMULATED_GPU_LEDGER": str(folder / "ledger"), **environment},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    found: list[str] | None = json.loads(done.stdout)
    return found


def test_a_checkpoint_on_the_first_device_is_named(tmp_path: Path, two_gpus: None) -> None:
    found = run(
        """
        model = nn.Linear(64, 64).to("cuda:1")
        ema = {"weight": torch.zeros(2 << 20, device="cuda:0")}
        print(json.dumps(found(model)))
        """,
        RANK_1,
        tmp_path,
    )
    assert found == [
        "memory-on-other-ranks-device",
        "Local rank 1 keeps 8.00 MiB on cuda:0, the device of local rank 0, in local 'ema' of main(). Local rank 0 has that much "
        "less, and its own counters do not show it.",
        'read a checkpoint with map_location="cpu" or map_location="cuda:1"',
    ]


@pytest.mark.parametrize(
    ("body", "environment"),
    [
        ('print(json.dumps(found(nn.Linear(64, 64).to("cuda:1"))))', RANK_1),
        (
            'x = torch.zeros(2 << 20, device="cuda:0"); print(json.dumps(found(nn.Linear(64, 64).to("cuda:1"))))',
            {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
        ),
        (  # a model on both devices
            'parts = nn.ModuleList([nn.Linear(1024, 1024).to("cuda:0"), nn.Linear(64, 64).to("cuda:1")]); '
            "print(json.dumps(found(parts)))",
            RANK_1,
        ),
        (  # the only rank of a host with two devices
            'x = torch.zeros(2 << 20, device="cuda:0"); print(json.dumps(found(nn.Linear(64, 64).to("cuda:1"))))',
            {"LOCAL_RANK": "", "LOCAL_WORLD_SIZE": ""},
        ),
    ],
    ids=["nothing kept", "one rank", "model on both", "no launcher"],
)
def test_otherwise_nothing_is_said(body: str, environment: dict[str, str], tmp_path: Path, two_gpus: None) -> None:
    assert run(body, environment, tmp_path) is None
