"""What each memory-saving technique saves, and all of them together: one model trained again and again, compared on one page.

    vramscope server &
    python examples/techniques.py                 # RoBERTa of 84 million parameters, batch 64, as in docs/techniques.md
    python examples/techniques.py --small         # a small one, in a minute
    python examples/techniques.py --only checkpointing --only all

Each training has a process of its own, so that none begins with what another left behind. The model is transformers' RoBERTa
where that is installed, else one of the same shape in plain PyTorch. The text is random: it is the memory that this is about.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    import torch

UNTOUCHED = -100
"""a label that the loss leaves out: masked language models learn from 15 % of the words"""


@dataclass(frozen=True)
class Shape:
    layers: int = 6
    width: int = 768
    heads: int = 12
    words: int = 52_000
    positions: int = 128
    batch: int = 64
    """sequences an optimizer step, however they are divided"""


SMALL = Shape(layers=2, width=128, heads=4, words=2_000, positions=64, batch=16)


@dataclass(frozen=True)
class Recipe:
    """One training: which techniques it uses."""

    name: str
    checkpointing: bool = False
    micro_steps: int = 1
    dtype: str | None = None
    eight_bit: bool = False


ALL = Recipe("all", checkpointing=True, micro_steps=4, dtype="fp16", eight_bit=True)
RECIPES = (
    Recipe("baseline"),
    Recipe("checkpointing", checkpointing=True),
    Recipe("accumulation", micro_steps=4),
    Recipe("bf16", dtype="bf16"),
    Recipe("fp16", dtype="fp16"),
    Recipe("8-bit", eight_bit=True),
    ALL,
    Recipe("all but checkpointing", micro_steps=4, dtype="fp16", eight_bit=True),
    Recipe("all but accumulation", checkpointing=True, dtype="fp16", eight_bit=True),
    Recipe("all but fp16", checkpointing=True, micro_steps=4, eight_bit=True),
    Recipe("all but 8-bit", checkpointing=True, micro_steps=4, dtype="fp16"),
)


# ---- one training, in a process of its own ----


def train(recipe: Recipe, shape: Shape, arguments: argparse.Namespace) -> None:
    """Train this number of optimizer steps with the agent. Print the run's id first, because the training may fail."""
    import torch

    from vramscope import agent

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = make_model(shape, recipe.checkpointing, arguments.attention).to(device).train()
    optimizer = make_optimizer(model, recipe)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(recipe.dtype or "")
    scaler = torch.amp.GradScaler(device.type, enabled=recipe.dtype == "fp16")
    sequences = shape.batch // recipe.micro_steps
    config = {
        "batch_size": sequences,
        "gradient_accumulation_steps": recipe.micro_steps,
        "sequence_length": shape.positions,
    }
    session = agent.attach(model, server=arguments.server, project=arguments.project, name=recipe.name, config=config)
    print(f"run {session.run_id}", flush=True)
    for _ in range(arguments.steps):
        for _ in range(recipe.micro_steps):
            words, labels = text(sequences, shape)
            autocast = torch.autocast(device.type, dtype) if dtype else contextlib.nullcontext()
            with autocast:
                loss = model(input_ids=words.to(device), labels=labels.to(device))[0] / recipe.micro_steps
            scaler.scale(loss).backward()
            del loss
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    session.close()


def text(sequences: int, shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and labels, both (sequences, positions)."""
    import torch

    words = torch.randint(5, shape.words, (sequences, shape.positions))
    return words, torch.where(torch.rand(words.shape) < 0.15, words, UNTOUCHED)


def make_model(shape: Shape, checkpointing: bool, attention: str) -> Any:
    """RoBERTa for masked language modelling; gives (loss, ...) for ``input_ids`` and ``labels``."""
    if importlib.util.find_spec("transformers") is None:
        return plain_roberta(shape, checkpointing)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched: the weights are random
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=shape.words,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        max_position_embeddings=514,
        type_vocab_size=1,
        attn_implementation=attention,
    )
    model = RobertaForMaskedLM(config)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def plain_roberta(shape: Shape, checkpointing: bool) -> Any:
    """The same shape without transformers."""
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    class Roberta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.word, self.position = nn.Embedding(shape.words, shape.width), nn.Embedding(514, shape.width)
            self.norm, self.drop = nn.LayerNorm(shape.width), nn.Dropout(0.1)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(
                    shape.width, shape.heads, 4 * shape.width, activation="gelu", batch_first=True
                )
                for _ in range(shape.layers)
            )
            self.dense, self.last_norm = nn.Linear(shape.width, shape.width), nn.LayerNorm(shape.width)
            self.head = nn.Linear(shape.width, shape.words)
            self.head.weight = self.word.weight  # tied, as in RoBERTa

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
            x = self.drop(self.norm(self.word(input_ids) + self.position.weight[2 : input_ids.shape[1] + 2]))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if checkpointing else block(x)
            logits = self.head(self.last_norm(functional.gelu(self.dense(x))))
            return (functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=UNTOUCHED),)

    return Roberta()


def make_optimizer(model: Any, recipe: Recipe) -> Any:
    import torch

    library = eight_bit_library() if recipe.eight_bit else None
    kind: Callable[..., Any] = torch.optim.AdamW
    if library is not None:
        kind = importlib.import_module(f"{library}.optim").AdamW8bit
    return kind(model.parameters(), lr=5e-5)


def eight_bit_library() -> str | None:
    return next((name for name in ("bitsandbytes", "torchao") if importlib.util.find_spec(name)), None)


# ---- all of them ----


def experiment(recipes: Sequence[Recipe], arguments: argparse.Namespace) -> int:
    """Train each in a process of its own, say how far it is, and end with the table and the page's address."""
    server = arguments.server.rstrip("/")
    if trouble := unreachable(server):
        print(f"No vramscope server answers at {server} ({trouble}). Start one with: vramscope server", file=sys.stderr)
        return 4
    runs: dict[str, str] = {}
    left_out = []
    for number, recipe in enumerate(recipes, 1):
        print(f"[{number}/{len(recipes)}] {recipe.name:<22} ", end="", flush=True)
        if recipe.eight_bit and eight_bit_library() is None:
            print("left out: neither bitsandbytes nor torchao is installed")
            left_out.append(recipe.name)
            continue
        began = time.monotonic()
        run, trouble = alone(recipe, arguments)
        if run:
            runs[recipe.name] = run
        print(f"{trouble or 'done'}, {time.monotonic() - began:.0f} s", flush=True)
    if not runs:
        print("Nothing was trained.", file=sys.stderr)
        return 1
    named = ",".join(runs.values())
    table = httpx.get(f"{server}/api/v1/compare/table", params={"runs": named, "format": "markdown"}, trust_env=False)
    print(f"\n{table.text}" if table.is_success else f"\nThe server refused the table: {table.text[:500]}")
    for name in left_out:
        print(f"{name}: left out, neither bitsandbytes nor torchao is installed")
    if importlib.util.find_spec("_emulated_gpu") is not None:
        print("This GPU is emulated and computes nothing: its memory is right, its times and losses mean nothing.")
    print(f"\n{server}/compare?runs={named}")
    return 0


def alone(recipe: Recipe, arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """The run's id, and what went wrong, of a training in a process of its own."""
    words = [sys.executable, __file__, "--alone", recipe.name, *(["--small"] if arguments.small else [])]
    for name in ("steps", "attention", "server", "project"):
        words += [f"--{name}", str(getattr(arguments, name))]
    done = subprocess.run(words, capture_output=True, text=True)
    found = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("run ")]
    if done.returncode == 0 and found:
        return found[0], None
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return (found[0] if found else None), f"failed: {said[-1][:200] if said else f'exit code {done.returncode}'}"


def unreachable(server: str) -> str | None:
    """Why no vramscope server answers; None where one does."""
    try:
        answer = httpx.get(f"{server}/api/v1/health", timeout=5, trust_env=False)
    except httpx.HTTPError as fault:
        return str(fault)
    return None if answer.status_code in (200, 503) and "status" in answer.text else f"status {answer.status_code}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a small model, for a quick look")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of each training")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="only the baseline and this one; several times: several"
    )
    parser.add_argument(
        "--attention", choices=("sdpa", "eager"), default="sdpa", help="of transformers; eager keeps all weights"
    )
    parser.add_argument("--server", default=os.environ.get("VRAMSCOPE_SERVER", "http://127.0.0.1:8265"))
    parser.add_argument("--project", default="techniques")
    parser.add_argument("--alone", metavar="NAME", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    named = {recipe.name: recipe for recipe in RECIPES}
    for name in [*(arguments.only or []), *([arguments.alone] if arguments.alone else [])]:
        if name not in named:
            parser.error(f"there is no {name!r}; there is: {', '.join(named)}")
    if arguments.steps < 1:
        parser.error("--steps: at least 1")
    if arguments.alone:
        shape = SMALL if arguments.small else Shape()
        train(named[arguments.alone], shape, arguments)
        return 0
    chosen = [recipe for recipe in RECIPES if not arguments.only or recipe.name in ("baseline", *arguments.only)]
    return experiment(chosen, arguments)


if __name__ == "__main__":
    sys.exit(main())
