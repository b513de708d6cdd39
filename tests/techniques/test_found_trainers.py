"""Trainers that were not passed to the agent: their settings count from the first step on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from collector import Collector
from training import Arrived, run

from vramscope.protocol import messages

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks, pytest.mark.timeout(180), pytest.mark.xdist_group("techniques")]

HUGGING_FACE = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=200, n_positions=64))
ids = torch.zeros(32, dtype=torch.long)
data = [{"input_ids": ids, "labels": ids} for _ in range(48)]
def trainer(steps):
    return Trainer(model=model, train_dataset=data, args=TrainingArguments(output_dir="out", max_steps=steps, bf16=True,
        gradient_accumulation_steps=2, per_device_train_batch_size=2, save_steps=3, report_to=[], disable_tqdm=True))
"""
LIGHTNING = """
import lightning
from torch.utils.data import DataLoader, TensorDataset
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
data = DataLoader(TensorDataset(torch.zeros(64, 64)), batch_size=4)
trainer = lightning.Trainer(max_steps=6, accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, devices=1, val_check_interval=8)
"""
AT_THE_FIRST_OPTIMIZER = """
import os, runpy
from vramscope.launch import AUTOSTART
os.environ["VRAMSCOPE_DISABLED"] = "1"  # so that it waits for no import, which was long ago
autostart = runpy.run_path(str(AUTOSTART / "sitecustomize.py"))
del os.environ["VRAMSCOPE_DISABLED"]
autostart["_attach_when_training_begins"](sys.modules["torch.optim.optimizer"])
"""
"""Code that ``vramscope run`` runs in the process that it starts."""


@pytest.fixture
def collector():
    with Collector() as collector:
        yield collector


def declared(arrived: Arrived) -> dict[str, str | None]:
    return {technique.kind: technique.declared for technique in arrived.of(messages.Techniques)[-1].techniques}


@pytest.mark.parametrize(
    "attach", ["agent.attach(config={'bf16': 'mine'})", AT_THE_FIRST_OPTIMIZER], ids=["bare", "run"]
)
def test_hugging_face_trainer_is_found(collector, tmp_path: Path, attach: str) -> None:
    """The run resumes at the Trainer's step. If the Trainer is passed later, it is the same one."""
    script = f"""{HUGGING_FACE}
trainer(3).train()
{attach}
again = trainer(6)
again.train(resume_from_checkpoint=True)
agent.attach(again, config={{"fold": 7}})
assert sum(type(callback).__name__ == "VramscopeCallback" for callback in again.callback_handler.callbacks) == 1
"""
    run(script, collector, tmp_path / "spool", loop=False)
    arrived = Arrived(collector)
    assert [row["step"] for row in arrived.rows("steps")] == [4, 5, 6]
    assert arrived.attached.framework == "huggingface"
    assert arrived.attached.config["gradient_accumulation_steps"] == 2
    assert arrived.attached.config["bf16"] == ("mine" if "mine" in attach else True), "what the user says goes first"
    result = declared(arrived)
    assert result["gradient_accumulation"] == "gradient_accumulation_steps=2"
    assert result["mixed_precision"] == "bf16=True"
    assert arrived.attached.config["fold"] == 7
    assert len(arrived.runs) == len(arrived.sessions) == 1


@pytest.mark.parametrize("attach", ["agent.attach()", AT_THE_FIRST_OPTIMIZER], ids=["bare", "run"])
def test_lightning_trainer_is_found(collector, tmp_path: Path, attach: str) -> None:
    run(f"{LIGHTNING}\n{attach}\ntrainer.fit(Net(), data, data)", collector, tmp_path / "spool", loop=False)
    arrived = Arrived(collector)
    steps = arrived.rows("steps")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert all(row["micro_steps"] == 2 for row in steps)
    assert arrived.phases()["eval"] > 0, "its callback reports evaluations"
    assert arrived.attached.framework == "lightning"
    assert declared(arrived)["gradient_accumulation"] == "accumulate_grad_batches=2"


def test_custom_loop_stays_a_loop(collector, tmp_path: Path) -> None:
    """A Trainer that does not train is ignored, and the session keeps no Trainer alive."""
    script = f"""{HUGGING_FACE}
import gc, weakref
one = trainer(3)
agent.attach()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(input_ids=ids[None].to(device), labels=ids[None].to(device)).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
agent.detach()
agent.attach()
one.train()
watched = weakref.ref(one)
del one
gc.collect()
print("gone", watched() is None)
"""
    output = run(script, collector, tmp_path / "spool", loop=False)
    assert "gone True" in output
    attached = {
        batch.session: message
        for batch, message in Arrived(collector).messages
        if isinstance(message, messages.Attached)
    }
    assert sorted(message.framework for message in attached.values()) == ["huggingface", "loop"]
