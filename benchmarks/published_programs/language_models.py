"""Language models: minGPT, BERT-large, GPT-2 from scratch, GPT-2 XL's weights, a 15-billion-parameter model that generates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from published_programs import program

F = nn.functional


class TanhGelu(nn.Module):
    """GELU in elementary operations, each of which keeps its result for the backward pass."""

    def __init__(self, *, fresh_constant: bool = False) -> None:
        super().__init__()
        self.fresh_constant = fresh_constant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fresh_constant:
            factor: Any = torch.sqrt(torch.tensor(2.0 / math.pi))
            return 0.5 * x * (1 + torch.tanh(factor * (x + 0.044715 * torch.pow(x, 3))))
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class MaskedAttention(nn.Module):
    """Causal attention of minGPT: one product for queries, keys and values, and a mask that is a buffer."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        q, k, v = (part.view(rows, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :length, :length] == 0, float("-inf"))
        y = self.attn_dropout(F.softmax(scores, dim=-1)) @ v
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(rows, length, width)))


class MinBlock(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = (
            nn.LayerNorm(width),
            MaskedAttention(width, heads, length),
            nn.LayerNorm(width),
        )
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), TanhGelu(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class MinGpt(nn.Module):
    def __init__(self, layers: int, heads: int, width: int, length: int, words: int) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(words, width), nn.Embedding(length, width), nn.Dropout(0.1)
        self.h = nn.ModuleList(MinBlock(width, heads, length) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        position = torch.arange(0, ids.shape[1], dtype=torch.long, device=ids.device).unsqueeze(0)
        x = self.drop(self.wte(ids) + self.wpe(position))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)


MIN_SHAPES = {"gpt2-xl": (48, 25, 1600), "gpt-nano": (3, 3, 48)}


@program
def mingpt(model: str, *, early: bool) -> Mapping[str, float]:
    """Train minGPT on its sorting task, with gradients freed before the backward pass, or before the forward pass."""
    with torch.device("cuda"):
        net = MinGpt(*MIN_SHAPES[model], length=11, words=3)
    parameters = list(net.parameters())
    groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1}]
    groups.append({"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0})
    optimizer = torch.optim.AdamW(groups, lr=5e-4, betas=(0.9, 0.95), foreach=False)
    for _ in range(3):
        x = torch.randint(0, 3, (64, 11)).cuda()
        y = torch.randint(0, 3, (64, 11)).cuda()
        if early:
            net.zero_grad(set_to_none=True)
        _, loss = net(x, y)
        if not early:
            net.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    return {"peak": torch.cuda.max_memory_allocated()}


@program
def bert_large(
    *, rows: int, accumulate: int = 1, half: bool = False, checkpointing: bool = False, adafactor: bool = False
) -> Mapping[str, float]:
    """Fine-tune BERT-large on sequences of 512 tokens, as in a loop of the Trainer of 2022."""
    from transformers import Adafactor, BertConfig, BertForSequenceClassification

    shape = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    with torch.device("cuda"):
        model = BertForSequenceClassification(shape).train()
    weights = torch.cuda.memory_reserved()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    if adafactor:
        optimizer = Adafactor(model.parameters(), scale_parameter=False, relative_step=False, lr=5e-5)
    scaler = torch.amp.GradScaler("cuda", enabled=half)
    for _ in range(3 if rows else 0):
        for _ in range(accumulate):
            ids, labels = torch.randint(100, 30000, (rows, 512)).cuda(), torch.zeros(rows, dtype=torch.long).cuda()
            with torch.autocast("cuda", torch.float16) if half else nullcontext():
                loss = model(input_ids=ids, labels=labels).loss
            scaler.scale(loss / accumulate).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)
    return {"weights": weights, "reserved": torch.cuda.max_memory_reserved()}


class OwnLayerNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.shift


class ScratchAttention(nn.Module):
    """Attention in elementary operations; the mask is a buffer, or is made on the fly."""

    def __init__(self, width: int, heads: int, length: int, dropout: float, *, bias: bool, buffer: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=bias) for _ in range(3))
        self.out, self.dropout, self.heads = nn.Linear(width, width), nn.Dropout(dropout), heads
        if buffer:
            self.register_buffer("mask", torch.triu(torch.ones(length, length), diagonal=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        shape = rows, length, self.heads, width // self.heads
        k, q, v = (part(x).view(shape).transpose(1, 2) for part in (self.key, self.query, self.value))
        scores = q @ k.transpose(2, 3)
        if hasattr(self, "mask"):
            mask = self.mask.bool()[:length, :length]
        else:
            mask = torch.triu(torch.ones(length, length, device=x.device), diagonal=1).bool()
        scores.masked_fill_(mask, -torch.inf)
        weights = self.dropout(torch.softmax(scores / k.shape[-1] ** 0.5, dim=-1))
        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))


class FusedAttention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropped = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropped, is_causal=True)
        return self.proj(y.transpose(1, 2).contiguous().view(rows, length, width))


class ScratchGpt(nn.Module):
    """GPT-2 of the book "Build a Large Language Model From Scratch"."""

    def __init__(
        self, layers: int, width: int, heads: int, dropout: float, *, bias: bool, buffer: bool, native: bool, sdpa: bool
    ) -> None:
        super().__init__()
        norm = nn.LayerNorm if native else OwnLayerNorm
        self.tok, self.pos, self.drop = nn.Embedding(50257, width), nn.Embedding(1024, width), nn.Dropout(dropout)
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            attention = (
                FusedAttention(width, heads, dropout)
                if sdpa
                else ScratchAttention(width, heads, 1024, dropout, bias=bias, buffer=buffer)
            )
            gelu = nn.GELU(approximate="tanh") if native else TanhGelu(fresh_constant=True)
            feed = nn.Sequential(nn.Linear(width, 4 * width), gelu, nn.Linear(4 * width, width))
            self.blocks.append(nn.ModuleList([norm(width), attention, norm(width), feed]))
        self.norm, self.head = norm(width), nn.Linear(width, 50257, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device)))
        for first, attention, second, feed in self.blocks:
            shortcut = x
            x = self.drop(attention(first(x))) + shortcut
            shortcut = x
            x = self.drop(feed(second(x))) + shortcut
        return self.head(self.norm(x))


@program
def scratch_training(
    *, buffer: bool = False, fused: bool = False, half: bool = False, native: bool = False, sdpa: bool = False
) -> Mapping[str, float]:
    """Train the GPT-2 with 124 million parameters: steps, an evaluation, and a generated text."""
    with torch.device("cuda"):
        model = ScratchGpt(12, 768, 12, 0.1, bias=False, buffer=buffer, native=native, sdpa=sdpa)
    if half:
        model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, fused=fused or None)

    def loss_of_batch() -> torch.Tensor:
        ids, targets = torch.randint(0, 50000, (8, 1024)).cuda(), torch.randint(0, 50000, (8, 1024)).cuda()
        return F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())

    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of_batch()
        loss.backward()
        optimizer.step()
        if not step:
            model.eval()
            with torch.no_grad():
                for _ in range(2):
                    loss_of_batch().item()
            model.train()
    model.eval()
    ids = torch.zeros(1, 4, dtype=torch.long, device="cuda")
    with torch.no_grad():
        for _ in range(50):
            ids = torch.cat((ids, torch.argmax(model(ids)[:, -1, :], dim=-1, keepdim=True)), dim=1)
    return {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}


@program
def scratch_loading(*, way: str) -> Mapping[str, float]:
    """Put a GPT-2 XL on the GPU; with a second copy of its weights; with copies of one tensor after the other."""
    with torch.device("cuda"):
        model = ScratchGpt(48, 1600, 25, 0.0, bias=True, buffer=True, native=False, sdpa=False)
    if way == "second copy":
        model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    if way == "one after the other":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.empty(parameter.shape).to("cuda"))
    return {"peak": torch.cuda.max_memory_allocated()}


@program
def octocoder() -> Mapping[str, float]:
    """Generate 60 tokens with a model of the shape of octocoder in bfloat16, after a prompt of 24 tokens."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    shape = GPTBigCodeConfig(
        vocab_size=49152, n_positions=8192, n_embd=6144, n_layer=40, n_head=48, n_inner=24576, multi_query=True
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GPTBigCodeForCausalLM(shape).eval()
    torch.cuda.reset_peak_memory_stats()  # the source loads each weight once; here the output layer is tied afterwards
    ids, cache = torch.zeros(1, 24, dtype=torch.long, device="cuda"), None
    with torch.no_grad():
        for _ in range(60):
            out = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, ids = out.past_key_values, torch.argmax(out.logits[:, -1:], dim=-1)
    return {"peak": torch.cuda.max_memory_allocated()}
