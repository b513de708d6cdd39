"""Stacks of transformer blocks, and of linear layers with mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from published_programs import program

F = nn.functional


@program
def mixed_precision() -> Mapping[str, float]:
    """PyTorch's recipe: three wide layers, first in float32, then in mixed precision. Names are rebound as in a script."""

    def make() -> nn.Sequential:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.Linear(4096, 4096), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(4096, 4096)).cuda()

    data = [torch.randn(512, 4096, device="cuda") for _ in range(50)]
    targets = [torch.randn(512, 4096, device="cuda") for _ in range(50)]
    loss_fn = nn.MSELoss().cuda()
    found = {}
    net = optimizer = output = loss = None
    for name, half in (("fp32", False), ("mixed", True)):
        net = make()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001, foreach=False)
        scaler = torch.amp.GradScaler("cuda", enabled=half)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for batch, target in zip(data[:5], targets, strict=False):
            with torch.autocast("cuda", torch.float16, enabled=half):
                output = net(batch)
                loss = loss_fn(output, target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=False)
        found[name] = torch.cuda.max_memory_allocated()
    return found


class Block(nn.Module):
    def __init__(self, *, weights: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(512, 4, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(512, 2048), nn.Linear(2048, 512)
        self.norm1, self.norm2 = nn.LayerNorm(512), nn.LayerNorm(512)
        self.weights = weights

    def attn_path(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        return x + self.attn(h, h, h, need_weights=self.weights)[0]

    def mlp_path(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm2(x)
        return x + self.linear2(F.relu(self.linear1(h)))


class Stack(nn.Module):
    """Twelve blocks, of which those that the rule names are checkpointed."""

    def __init__(self, rule: Callable[[int], bool], *, attention: bool, mlp: bool, weights: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(weights=weights).to(dtype=torch.bfloat16, device="cuda") for _ in range(12))
        self.rule, self.attention, self.mlp = rule, attention, mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            for path, chosen in ((block.attn_path, self.attention), (block.mlp_path, self.mlp)):
                use = chosen and self.rule(number)
                x = checkpoint(path, x, use_reentrant=False) if use else path(x)
        return x


def _after_first(number: int) -> bool:
    return number > 0


def _every_other(number: int) -> bool:
    return number % 2 == 1


def _trained(model: nn.Module, x: torch.Tensor) -> int:
    optimizer = torch.optim.AdamW(model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
    return torch.cuda.max_memory_allocated()


@program
def checkpointed_stacks() -> Mapping[str, float]:
    """Cells of a notebook, one after the other: models of earlier cells stay alive with their gradients."""
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_math_sdp(False)
    found: dict[str, float] = {}
    alive: list[nn.Module] = []

    def cell(rows: dict[str, nn.Module]) -> None:
        alive.extend(rows.values())
        x = torch.randn(1, 4096, 512, dtype=torch.bfloat16, device="cuda")
        for name, model in rows.items():
            found[name] = _trained(model, x)

    cell(
        {
            "none": Stack(_after_first, attention=False, mlp=False),
            "both": Stack(_after_first, attention=True, mlp=True),
            "mlp": Stack(_after_first, attention=False, mlp=True),
            "attention": Stack(_after_first, attention=True, mlp=False),
        }
    )
    cell(
        {
            "both, second cell": Stack(_after_first, attention=True, mlp=True),
            "every other": Stack(_every_other, attention=True, mlp=True),
        }
    )
    cell(
        {
            "both, third cell": Stack(_after_first, attention=True, mlp=True),
            "both, flash": Stack(_after_first, attention=True, mlp=True, weights=False),
            "every other, flash": Stack(_every_other, attention=True, mlp=True, weights=False),
        }
    )
    return found


class GiantBlock(nn.Module):
    """A block of a ViT-giant of DINOv2: scaled residuals, and a gated MLP with one packed product."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.scale1, self.scale2 = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, width)
        x = x + self.proj(y) * self.scale1
        gate, value = self.fc1(self.norm2(x)).chunk(2, dim=-1)
        return x + self.fc2(F.silu(gate) * value) * self.scale2


class GiantVit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 1536, 14, 14)
        self.first, self.position = nn.Parameter(torch.zeros(1, 1, 1536)), nn.Parameter(torch.zeros(1, 257, 1536))
        self.blocks = nn.ModuleList(GiantBlock(1536, 24, 4096) for _ in range(40))
        self.norm, self.head = nn.LayerNorm(1536, eps=1e-6), nn.Linear(1536, 45)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x)[:, 0])


@program
def giant_vit() -> Mapping[str, float]:
    """Train the ViT-giant in bfloat16 with checkpointing and a fused AdamW, 32 images of 224 pixels a step."""
    with torch.device("cuda"):
        model = GiantVit().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(3):
        images: Any = torch.empty(32, 3, 224, 224, dtype=torch.bfloat16).cuda()
        with nullcontext():
            loss = F.cross_entropy(model(images), torch.zeros(32, dtype=torch.long).cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"peak": torch.cuda.max_memory_allocated()}
