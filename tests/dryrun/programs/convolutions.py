"""A residual network of convolutions, with SGD. HAND names the changes that are made in the code."""

import contextlib
import os

import torch
from by_hand import optimizer_class, sharded  # beside this file
from torch import nn
from torch.utils.checkpoint import checkpoint

HAND = os.environ.get("HAND", "").split(",")


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(inner)))


class Stage(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self:
            x = checkpoint(block, x, use_reentrant=False) if "checkpointing" in HAND else block(x)
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 10)
        self.layer1, self.layer2 = (Stage(*(Residual(32) for _ in range(3))) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(self.layer1(self.stem(x)), 2)
        return self.head(self.layer2(x).mean((2, 3)))


model = Net().cuda()
sharded(model, [*model.layer1, *model.layer2])
options = {"fused": True} if "fused_optimizer" in HAND else {}
optimizer = optimizer_class("SGD")(model.parameters(), lr=0.1, momentum=0.9, **options)
for _ in range(int(os.environ.get("STEPS", "100"))):
    optimizer.zero_grad()
    x, y = torch.zeros(16, 3, 64, 64).cuda(), torch.zeros(16, dtype=torch.long).cuda()
    if "bf16_autocast" in HAND:
        context = torch.autocast("cuda", dtype=torch.bfloat16)
    else:
        context = contextlib.nullcontext()
    with context:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
