"""Trains with Ray Train on two workers. ``test_ray_train.py`` installs Ray and runs it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig, report
from ray.train.torch import TorchTrainer

from vramscope.integrations import VramscopeTrainLoop

STORAGE_BYTES = 100 << 20


def train(config: dict[str, Any]) -> None:
    model = ray.train.torch.prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["rate"])
    for _ in range(6):
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        report({"accuracy": 0.5, "note": "text"}, checkpoint=Checkpoint.from_directory(folder))
    if config["fails"]:
        raise ValueError("the last line")


if __name__ == "__main__":
    folder, fails = sys.argv[1], sys.argv[2] == "fails"
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=STORAGE_BYTES)
    TorchTrainer(
        VramscopeTrainLoop(train, project="rays"),
        train_loop_config={"rate": 0.1, "fails": fails},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="two workers", storage_path=folder),
    ).fit()
