"""Mixtures of experts in three styles, and a detection head. HAND: the sizes are in the code, and nothing is read.

Experts get equally many rows, and the head 100 boxes.
"""

import os
import sys

import torch
from torch import nn

STYLE, BY_HAND = sys.argv[1], "balanced" in os.environ.get("HAND", "")
WIDTH, EXPERTS, CHOICES, ROWS = 256, 8, 2, 4100


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 1024), nn.GELU(), nn.Linear(1024, WIDTH)) for _ in range(8)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(CHOICES, dim=-1)
        return getattr(self, STYLE)(x, weights, chosen)

    def masks(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mask = chosen == number
            if BY_HAND:
                size = shares()[number]
                rows, choice = torch.empty(2, size, dtype=torch.long, device="cuda").unbind()
            else:
                rows, choice = torch.where(mask)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, choice, None])
        return out

    def counts(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        order = chosen.flatten().argsort()
        if BY_HAND:
            sizes = shares()
        else:
            number = torch.bincount(chosen.flatten(), minlength=EXPERTS)
            sizes = number.tolist()
        parts = x[order // CHOICES].split(sizes)
        results = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        return torch.zeros_like(x).index_add_(0, order // CHOICES, results * weights.flatten()[order, None])

    def one_hot(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        masks = nn.functional.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            if BY_HAND:
                choice, rows = torch.empty(2, shares()[number], dtype=torch.long, device="cuda").unbind()
            else:
                choice, rows = torch.where(masks[number])
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, choice, None])
        return out

    def boxes(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Keep the rows with a high score, at most 1,000 of them."""
        few = torch.empty(100, dtype=torch.long, device="cuda")
        kept = x[few] if BY_HAND else x[weights[:, 0] > 0.5]
        return self.experts[0](kept[: min(1000, len(kept))])


def shares() -> list[int]:
    each, rest = divmod(ROWS * CHOICES, EXPERTS)
    return [each + (number < rest) for number in range(EXPERTS)]


model = nn.Sequential(Experts(), Experts()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(int(os.environ.get("STEPS", "100"))):
    model(torch.zeros(ROWS, WIDTH, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
