"""The blocks of the pages about frameworks and trackers work when they are pasted, with the real packages."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from collector import Collector
from training import Arrived, run

from vramscope.protocol import messages

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks, pytest.mark.timeout(180)]

DOCS = Path(__file__).resolve().parents[2] / "docs"

TRANSFORMERS = """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=50, n_positions=32))
ids = torch.zeros(16, dtype=torch.long)
data = [{"input_ids": ids, "labels": ids} for _ in range(16)]
arguments = TrainingArguments(output_dir="out", max_steps=4, save_strategy="no", report_to=[])
"""
LIGHTNING = """
import lightning
class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(32, 4)
    def training_step(self, batch, index):
        return self.net(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
"""
ACCELERATE = """
from accelerate import Accelerator
"""
WANDB = """
import os
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
os.environ.pop("WANDB_DISABLED")
trainer = Trainer(model=model, args=arguments, train_dataset=data)
"""


def tab(page: str, title: str) -> str:
    """The block of code below a tab."""
    after = (DOCS / page).read_text().partition(f'=== "{title}"\n')[2]
    block = re.search(r"    ```python\n(.*?)    ```", after, re.DOTALL)
    assert block is not None, title
    return textwrap.dedent(block[1])


def first_block(page: str) -> str:
    block = re.search(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None, page
    return block[1]


def arrived_from(collector: Collector, spool: Path, *parts: str) -> Arrived:
    run("\n".join(parts), collector, spool, loop=False)
    return Arrived(collector)


def steps(arrived: Arrived) -> list[int]:
    assert len(arrived.runs) == 1
    assert arrived.ended is not None and arrived.ended.state == "finished"
    return [row["step"] for row in arrived.rows("steps")]


def test_the_block_about_transformers(collector: Collector, spool: Path) -> None:
    assert steps(arrived_from(collector, spool, TRANSFORMERS, tab("frameworks.md", "transformers"))) == [1, 2, 3, 4]


def test_the_block_about_report_to(collector: Collector, spool: Path) -> None:
    ends = "Trainer(model=model, args=arguments, train_dataset=data).train()"
    arrived = arrived_from(collector, spool, TRANSFORMERS, tab("frameworks.md", "report_to"), ends)
    assert steps(arrived) == [1, 2, 3, 4, 5, 6], "three epochs of 16 rows on one device"


def test_the_block_about_lightning(collector: Collector, spool: Path) -> None:
    ends = """
trainer.fit_loop.max_epochs = 1
trainer.fit(Small(), torch.utils.data.DataLoader(torch.zeros(24, 32), batch_size=4))
"""
    arrived = arrived_from(collector, spool, LIGHTNING, tab("frameworks.md", "Lightning"), ends)
    assert steps(arrived) == [1, 2, 3, 4, 5, 6]


def test_the_block_about_accelerate(collector: Collector, spool: Path) -> None:
    ends = """
model = nn.Linear(32, 4)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
for _ in range(3):
    accelerator.backward(model(torch.zeros(8, 32, device="cuda")).square().mean())
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
"""
    arrived = arrived_from(collector, spool, ACCELERATE, tab("frameworks.md", "accelerate"), ends)
    assert steps(arrived) == [1, 2, 3]
    assert arrived.attached.project == "my-project"
    assert arrived.attached.config["learning_rate"] == 1e-4


def test_the_block_about_wandb(collector: Collector, spool: Path) -> None:
    pytest.importorskip("wandb")
    arrived = arrived_from(collector, spool, TRANSFORMERS, WANDB, first_block("trackers.md"))
    assert steps(arrived) == [1, 2, 3, 4]
    assert list(spool.parent.glob("wandb/offline-run-*/*.wandb"))
    links = [event.data["text"] for event in arrived.of(messages.Event) if event.kind == "tracker"]
    assert len(links) == 1 and "W&B" in links[0]
