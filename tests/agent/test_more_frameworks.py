"""Frameworks without a callback of their own: Lightning Fabric in each run of the tests, others at night with the real library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from collector import Collector
from training import Arrived, run

pytestmark = [pytest.mark.gpu, pytest.mark.frameworks]

TORCHVISION = f"torchvision==0.{int(torch.__version__.split('.')[1]) + 15}.*"
"""The version for the installed PyTorch: 0.28 for 2.13."""
PACKAGES = (
    "trl", "sentence-transformers", "timm", "mmengine", "ultralytics", TORCHVISION,
    # What these import and the tests have not installed. Their own lists would bring a second PyTorch.
    "datasets", "dill", "multiprocess", "xxhash", "pandas", "pytz", "tzdata", "scikit-learn", "scipy", "joblib", "threadpoolctl",
    "addict", "yapf", "termcolor", "matplotlib", "contourpy", "cycler", "kiwisolver", "pyparsing", "fonttools",
    "opencv-python-headless", "ultralytics-thop", "polars", "polars-runtime-32",
)  # fmt: skip

FABRIC = """
import lightning
from vramscope.integrations import VramscopeLogger
fabric = lightning.Fabric(accelerator="gpu", devices=1, loggers=VramscopeLogger(name="fabric"))
fabric.logger.log_hyperparams({"rate": 0.1})
model, optimizer = fabric.setup(model, optimizer)
for step in range(5):
    fabric.backward(model(torch.zeros(8, 64, device="cuda")).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    fabric.log("accuracy", torch.tensor(0.5), step=step)
agent.detach()
"""


def numbers(collector: Collector) -> set[str]:
    """Names of all numbers that arrived."""
    return {name for batch in collector.stored.values() for scalars in batch.scalars for name in scalars.columns}


def test_lightning_fabric_takes_the_logger(collector: Collector, spool: Path) -> None:
    run(FABRIC, collector, spool)
    arrived = Arrived(collector)
    assert [row["step"] for row in arrived.rows("steps")] == [1, 2, 3, 4, 5]
    assert (arrived.attached.name, arrived.attached.config["rate"]) == ("fabric", 0.1)
    assert "accuracy" in numbers(collector)
    assert arrived.ended is not None and arrived.ended.state == "finished"


WORDS = """
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from vramscope.integrations import VramscopeCallback
words = {word: at for at, word in enumerate(["<pad>", "<eos>", "<unk>", "a", "b", "c", "d"])}
tokens = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokens.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=8, n_positions=64, bos_token_id=1, eos_token_id=1))
settings = dict(output_dir="out", max_steps=3, report_to=[], logging_steps=1, save_strategy="no", disable_tqdm=True)
watched = dict(callbacks=[VramscopeCallback()])
"""
SFT = """
from trl import SFTConfig, SFTTrainer
data = Dataset.from_list([{"text": "a b c d"}] * 16)
arguments = SFTConfig(per_device_train_batch_size=2, bf16=False, run_name="sft", **settings)
SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer, **watched).train()
"""
DPO = """
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer
data = Dataset.from_list([{"prompt": "a b", "chosen": " c", "rejected": " d"}] * 16)
arguments = DPOConfig(per_device_train_batch_size=2, bf16=False, run_name="dpo", **settings)
lora = LoraConfig(target_modules=["c_attn"], r=2)
DPOTrainer(model=model, args=arguments, train_dataset=data, processing_class=tokenizer, peft_config=lora, **watched).train()
"""
GRPO = """
from trl import GRPOConfig, GRPOTrainer
data = Dataset.from_list([{"prompt": "a b"}] * 16)
arguments = GRPOConfig(per_device_train_batch_size=2, num_generations=2, max_completion_length=4, bf16=False, use_cpu=True,
    run_name="grpo", **settings)
def reward(completions, **more):
    return [0.5] * len(completions)
GRPOTrainer(model=model, reward_funcs=reward, args=arguments, train_dataset=data, processing_class=tokenizer, **watched).train()
"""
SENTENCES = """
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments, losses
from sentence_transformers import models as modules
from transformers import BertConfig, BertModel
bert = BertConfig(vocab_size=8, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
BertModel(bert).save_pretrained("bert")
tokenizer.save_pretrained("bert")
model = SentenceTransformer(modules=[modules.Transformer("bert", max_seq_length=16), modules.Pooling(32)])
data = Dataset.from_list([{"anchor": "a b", "positive": "c d"}] * 16)
arguments = SentenceTransformerTrainingArguments(per_device_train_batch_size=4, run_name="sentences", **settings)
loss = losses.MultipleNegativesRankingLoss(model)
SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss, **watched).train()
"""
TIMM = """
import timm
from timm.optim import create_optimizer_v2
model = timm.create_model("resnet18", pretrained=False, num_classes=4).cuda()
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
agent.attach(model, name="timm")
for _ in range(3):
    model(torch.zeros(2, 3, 64, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MMENGINE = """
from mmengine.model import BaseModel
from mmengine.runner import Runner
class Small(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)
    def forward(self, rows, mode):
        return {"loss": self.layer(rows.cuda()).square().mean()}
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(12, 8)), batch_size=4)
runner = Runner(model=Small(), work_dir="out", train_dataloader=loader, optim_wrapper=dict(optimizer=dict(type="SGD", lr=0.1)),
    train_cfg=dict(by_epoch=True, max_epochs=1), default_scope="mmengine")
agent.attach(name="mmengine")
runner.train()
"""
ULTRALYTICS = """
import cv2, numpy, pathlib
for part in ("train", "val"):
    for kind in ("images", "labels"):
        pathlib.Path("data", kind, part).mkdir(parents=True)
    for at in range(4):
        cv2.imwrite(f"data/images/{part}/{at}.jpg", numpy.zeros((64, 64, 3), dtype="uint8"))
        pathlib.Path(f"data/labels/{part}/{at}.txt").write_text("0 0.5 0.5 0.4 0.4")
folder = pathlib.Path("data").resolve()
pathlib.Path("data.yaml").write_text(f"path: {folder}\\ntrain: images/train\\nval: images/val\\nnames: {{0: a}}")
from ultralytics import YOLO
agent.attach(name="ultralytics")
YOLO("yolov8n.yaml").train(data="data.yaml", epochs=2, nbs=2, imgsz=64, batch=2, amp=False, workers=0, device="cpu", plots=False,
    val=False, project="out", verbose=False)
"""
PROGRAMS = {
    # name -> program, number of steps, a reported number
    "sft": (WORDS + SFT, 3, "trainer_loss"),
    "dpo": (WORDS + DPO, 3, "rewards/margins"),
    "grpo": (WORDS + GRPO, 3, "reward"),
    "sentences": (WORDS + SENTENCES, 3, "trainer_loss"),
    "timm": (TIMM, 3, None),
    "mmengine": (MMENGINE, 3, None),
    "ultralytics": (ULTRALYTICS, 4, None),
}


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages."""
    folder = tmp_path_factory.mktemp("frameworks")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
    subprocess.run(install, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PROGRAMS)
def test_another_framework_is_watched(collector: Collector, spool: Path, installed: Path, name: str) -> None:
    """GRPO generates and ultralytics counts its targets, which an emulated GPU cannot do: they train on the CPU."""
    program, steps, number = PROGRAMS[name]
    run(
        f"sys.path.append({str(installed)!r})\n{program}",
        collector,
        spool,
        loop=False,
        YOLO_CONFIG_DIR=str(spool.parent),
    )
    arrived = Arrived(collector)
    assert [row["step"] for row in arrived.rows("steps")] == list(range(1, steps + 1))
    assert len(arrived.runs) == 1
    assert arrived.attached.name == name
    assert number is None or number in numbers(collector)
    assert arrived.ended is not None and arrived.ended.state == "finished"
