"""The one line with each kind of target, and without any: what the real server says of a real training is what PyTorch said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import warm

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("each framework"), pytest.mark.timeout(300)]

PRELUDE = """
import json, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
began = []
plain_backward = torch.Tensor.backward
def backward(loss, *args, **kwargs):
    # (The emulated GPU computes no loss, but it copies one.)
    with torch.no_grad():
        loss.copy_(torch.tensor(3.0 - 0.25 * len(began)))
    began.append(loss.item())
    return plain_backward(loss, *args, **kwargs)
torch.Tensor.backward = backward
def tell(name):
    '''What this process itself knows of the run; then everything is reset.'''
    peaks = [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]
    print(json.dumps({"name": name, "peaks": peaks, "losses": began[:], "pid": os.getpid()}), flush=True)
    began.clear()
"""

LOOP = """
def made(width=256):
    model = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 4)).cuda()
    return model, torch.optim.AdamW(model.parameters())
def train(model, optimizer, width=256):
    for rows in (500, 2000, 500, 500, 500, 500):
        model(torch.zeros(rows, width, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

PLAIN = """
from vramscope import agent
for name in ("a module", "an optimizer", "nothing"):
    model, optimizer = made()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    session = agent.attach({"a module": model, "an optimizer": optimizer, "nothing": None}[name], name=name)
    train(model, optimizer)
    tell(name)
    session.close()
    del session, model, optimizer
"""

UNTOUCHED = """
model, optimizer = made()
train(model, optimizer)
tell("vramscope run")
"""

HUGGING_FACE = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from vramscope import agent
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=200, n_positions=64))
ids = torch.zeros(32, dtype=torch.long)
data = [{"input_ids": ids, "labels": ids} for _ in range(48)]
arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, max_steps=6, eval_strategy="steps", eval_steps=3,
    save_strategy="no", report_to=[], disable_tqdm=True)
trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data[:8])
agent.attach(trainer, name="a transformers Trainer")
trainer.train()
tell("a transformers Trainer")
"""

LIGHTNING = """
import lightning
from vramscope import agent
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 4)
    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()
    def validation_step(self, batch, number):
        self.layer(batch[0])
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
data = DataLoader(TensorDataset(torch.zeros(24, 64)), batch_size=4)
trainer = lightning.Trainer(max_steps=6, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, devices=1, val_check_interval=3)
agent.attach(trainer, name="a lightning Trainer")
trainer.fit(Net(), data, data)
tell("a lightning Trainer")
"""

ACCELERATE = """
from accelerate import Accelerator
from vramscope import agent
accelerator = Accelerator(gradient_accumulation_steps=2)
agent.attach(accelerator, name="an Accelerator")
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, data = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(torch.zeros(48, 64)), batch_size=4))
for (batch,) in data:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
tell("an Accelerator")
"""

# name -> the framework that the run says, and the micro-steps of a step
RUNS = {
    "a module": ("loop", 1),
    "an optimizer": ("loop", 1),
    "nothing": ("loop", 1),
    "vramscope run": ("loop", 1),
    "a transformers Trainer": ("huggingface", 1),
    "a lightning Trainer": ("lightning", 1),
    "an Accelerator": ("accelerate", 2),
}
OF_FRAMEWORKS = {"a transformers Trainer", "a lightning Trainer", "an Accelerator"}


@pytest.fixture(scope="module")
def runs(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """All trainings, beside each other; what each knew of itself."""
    folder = tmp_path_factory.mktemp("trainings")
    env = {
        **os.environ,
        "VRAMSCOPE_SERVER": server,
        "VRAMSCOPE_SPOOL_DIR": str(folder / "spool"),
        "VRAMSCOPE_CLOSE_TIMEOUT_S": "30",
        "HF_HUB_OFFLINE": "1",
        "WANDB_DISABLED": "true",
    }
    (folder / "train.py").write_text(PRELUDE + LOOP + UNTOUCHED)
    words = [
        sys.executable,
        "-m",
        "vramscope_server",
        "run",
        "--name",
        "vramscope run",
        "--",
        sys.executable,
        "train.py",
    ]
    untouched = subprocess.Popen(words, env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    codes = [LOOP + PLAIN, HUGGING_FACE, LIGHTNING, ACCELERATE]
    programs = [warm.Program(PRELUDE + textwrap.dedent(code), env=env, cwd=folder) for code in codes]
    lines: list[str] = []
    for program in (*programs, untouched):
        out, err = program.communicate(timeout=250)
        assert program.returncode == 0, err[-4000:]
        lines += [line for line in out.splitlines() if line.startswith('{"name"')]
    yield {known["name"]: known for known in map(json.loads, lines)}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.frameworks) if n in OF_FRAMEWORKS else n for n in RUNS]
)
def test_the_server_says_of_a_training_what_it_was(server: str, runs: dict[str, dict[str, Any]], name: str) -> None:
    framework, micro_steps = RUNS[name]
    known = runs[name]
    (row,) = httpx.get(f"{server}/api/v1/runs", params={"query": name}).json()["runs"]
    run = httpx.get(f"{server}/api/v1/runs/{row['run_id']}").json()
    steps = httpx.get(f"{server}/api/v1/runs/{row['run_id']}/steps").json()

    assert (run["state"], run["framework"], run["steps"]) == ("finished", framework, 6)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert {step["micro_steps"] for step in steps} == {micro_steps}

    # The training's own counters, over all that it did: none of it was left out, and none of it was spoilt.
    assert [run["peak_allocated_bytes"], run["peak_reserved_bytes"]] == known["peaks"]
    for step in steps:
        assert 0 < step["peak_allocated_bytes"] <= step["peak_reserved_bytes"]
        assert {"data", "forward", "backward", "optimizer"} - set(step["phases"]) <= (
            {"data"} if framework == "loop" else set()
        )
        assert max(of["peak_allocated_bytes"] for of in step["phases"].values()) == step["peak_allocated_bytes"]
    if framework == "loop":  # of its six steps the second has the most rows
        assert max(steps, key=lambda step: step["peak_allocated_bytes"])["step"] == 2
    if name in ("a transformers Trainer", "a lightning Trainer"):
        assert any("eval" in step["phases"] for step in steps)

    assert known["losses"][:2] == [3.0, 2.75]
    losses = [sum(known["losses"][at : at + micro_steps]) for at in range(0, 6 * micro_steps, micro_steps)]
    assert (run["loss"]["source"], run["loss"]["count"]) == ("the tensor on which backward() was called", 6)
    assert [run["loss"]["first"], run["loss"]["last"]] == pytest.approx([losses[0], losses[-1]], nan_ok=True)

    (rank,) = run["ranks"]
    assert (rank["rank"], rank["pid"], rank["steps"]) == (0, known["pid"], 6)
