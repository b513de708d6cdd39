"""Variants of a training: ``NAME+4+checkpointing+8bit`` is NAME with four micro-batches, checkpointed blocks and 8-bit moments.
``bf16`` is autocast, ``loop`` an optimizer that steps one parameter at a time, ``x3`` three times the rows, ``chunked`` a loss
in sixteen chunks, ``as`` the training itself.

The measured memory of each variant is compared with the prediction (tests/anatomy/test_prediction.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import known_trainings
import torch
from known_trainings import Residual, Training, layers, on_gpu
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CHUNKS = 16


class Made(NamedTuple):
    model: nn.Module
    loss: Callable[..., Tensor]
    """Rows of ``batch``."""
    batch: Callable[[int], tuple[Tensor, ...]]
    """Makes a batch with a number of rows on the host."""
    rows: int
    """Loss of an optimizer step."""
    blocks: list[nn.Module]
    """Blocks that are checkpointed one by one."""
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    head: Callable[[Tensor], Tensor] | None = None
    """Computes logits from the output of the model's body, if the loss can be chunked."""
    body: Callable[..., Tensor] | None = None


def words_of(length: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda rows: (torch.zeros(rows, length, dtype=torch.long),)


def language(model: Any, blocks: list[nn.Module], body: Any, head: Any, rows: int, length: int) -> Made:
    return Made(
        model,
        lambda words: model(input_ids=words, labels=words).loss,
        words_of(length),
        rows,
        blocks,
        head=head,
        body=body,
    )


def gpt2() -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    model = on_gpu(lambda: GPT2LMHeadModel(GPT2Config(n_layer=layers(12))))
    body = model.transformer
    return language(model, list(body.h), lambda words: body(words).last_hidden_state, model.lm_head, 8, 512)


def roberta() -> Made:
    """The article's training (docs/techniques.md)."""
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=52_000, num_hidden_layers=layers(6), max_position_embeddings=514, type_vocab_size=1
    )
    model = on_gpu(lambda: RobertaForMaskedLM(config))
    body = model.roberta
    return language(
        model, list(body.encoder.layer), lambda words: body(words).last_hidden_state, model.lm_head, 64, 128
    )


def llama() -> Made:
    """Grouped queries, a gated MLP, an untied head."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32_000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers(9), num_attention_heads=16,
        num_key_value_heads=4,
    )  # fmt: skip
    model = on_gpu(lambda: LlamaForCausalLM(config))
    body = model.model
    return language(model, list(body.layers), lambda words: body(words).last_hidden_state, model.lm_head, 8, 512)


def tied() -> Made:
    """Mostly a tied embedding: at the end of backward its two gradients wait for their sum."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64_000, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = on_gpu(lambda: LlamaForCausalLM(config))
    body = model.model
    return language(model, list(body.layers), lambda words: body(words).last_hidden_state, model.lm_head, 8, 64)


def vit() -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    model = on_gpu(lambda: ViTForImageClassification(ViTConfig(num_hidden_layers=layers(12), num_labels=1000)))

    def batch(rows: int) -> tuple[Tensor, ...]:
        return torch.zeros(rows, 3, 224, 224), torch.zeros(rows, dtype=torch.long)

    return Made(
        model, lambda images, labels: model(pixel_values=images, labels=labels).loss, batch, 32, list(model.vit.layers)
    )


def encoder() -> Made:
    """PyTorch's encoder layers with few rows: mostly weights and optimizer state."""
    model = on_gpu(
        lambda: nn.Sequential(
            *(nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(layers(6))),
            nn.Linear(1024, 10),
        )
    )
    return Made(
        model,
        lambda rows: model(rows).square().mean(),
        lambda rows: (torch.zeros(rows, 64, 1024),),
        16,
        list(model[:-1]),
    )


def resnet() -> Made:
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    model = on_gpu(
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)),
            *(Residual(*shape) for shape in widths),
            nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)),
        )
    )

    def batch(rows: int) -> tuple[Tensor, ...]:
        return torch.zeros(rows, 3, 128, 128), torch.zeros(rows, dtype=torch.long)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(images), labels)

    return Made(model, loss, batch, 32, list(model))


def unet() -> Made:
    """A U-Net: outputs of blocks are used again much later."""

    class Double(nn.Sequential):
        def __init__(self, inside: int, outside: int) -> None:
            super().__init__(
                nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU(),
                nn.Conv2d(outside, outside, 3, padding=1), nn.GroupNorm(8, outside), nn.SiLU(),
            )  # fmt: skip

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [32, 64, 128, 256]
            self.down = nn.ModuleList(Double(a, b) for a, b in zip([3, *widths], widths, strict=False))
            self.up = nn.ModuleList(Double(a + b, b) for a, b in zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.last = nn.Conv2d(32, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            skips = []
            for at, block in enumerate(self.down):
                x = block(functional.max_pool2d(x, 2) if at else x)
                skips.append(x)
            for block in self.up:
                skips.pop()
                x = block(torch.cat([functional.interpolate(x, scale_factor=2.0), skips[-1]], 1))
            return self.last(x)

    model = on_gpu(UNet)
    return Made(
        model,
        lambda images: (model(images) - images).square().mean(),
        lambda rows: (torch.zeros(rows, 3, 96, 96),),
        16,
        [*model.down, *model.up],
    )


MODELS = {make.__name__: make for make in (gpt2, roberta, llama, tied, vit, encoder, resnet, unet)}


def made(name: str) -> Training | None:
    """Training of a name with a recipe; None for other names."""
    kind, *words = name.split("+")
    if kind not in MODELS or (not words and kind in known_trainings.TRAININGS):
        return None
    return trained(MODELS[kind](), words)


def trained(one: Made, words: list[str]) -> Training:
    micro_batches = next((int(word) for word in words if word.isdecimal()), 1)
    if "checkpointing" in words:
        for block in one.blocks:
            checkpointed(block)
        if config := getattr(one.model, "config", None):
            config.use_cache = False  # (as transformers does: what it keeps would be the first forward's)
    rows = one.rows * next((int(word[1:]) for word in words if word.startswith("x")), 1)
    optimizer = optimizer_of(one, words)
    loss = chunked(one) if "chunked" in words else one.loss

    def step() -> None:
        for _ in range(micro_batches):
            given = [value.cuda() for value in one.batch(rows // micro_batches)]
            with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in words):
                part = loss(*given) / micro_batches
            part.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training([one.model], [optimizer], step)


def checkpointed(block: nn.Module) -> None:
    """Wraps a module in a checkpoint. Keyword arguments bypass the checkpoint, as in transformers."""
    forward = block.forward
    block.forward = lambda *args, **kwargs: checkpoint(lambda *a: forward(*a, **kwargs), *args, use_reentrant=False)


def optimizer_of(one: Made, words: list[str]) -> torch.optim.Optimizer:
    if "8bit" in words:
        sys.path.append(f"{sys.prefix}/optimizers")
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(one.model.parameters())
    return one.optimizer(one.model.parameters(), **({"foreach": False} if "loop" in words else {}))


def chunked(one: Made) -> Callable[[Tensor], Tensor]:
    body, head = one.body, one.head
    assert body is not None and head is not None

    def part(some: Tensor, words: Tensor) -> Tensor:
        return functional.cross_entropy(head(some), words, reduction="sum")

    def loss(words: Tensor) -> Tensor:
        pieces = zip(body(words).flatten(0, 1).chunk(CHUNKS), words.flatten().chunk(CHUNKS), strict=True)
        return torch.stack([checkpoint(part, *piece, use_reentrant=False) for piece in pieces]).sum() / words.numel()

    return loss
