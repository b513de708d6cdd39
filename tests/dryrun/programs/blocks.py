"""A plain loop with repeated blocks. HAND names the changes that are made in the code."""

import contextlib
import os

import torch
from by_hand import optimizer_class, sharded  # beside this file
from torch import nn
from torch.utils.checkpoint import checkpoint

HAND = os.environ.get("HAND", "").split(",")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 256), nn.Linear(256, 1000)
        self.blocks = nn.ModuleList(Block(256) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "checkpointing" in HAND else block(x)
        return self.head(x)


model = Net().cuda()
sharded(model, model.blocks)
if "fused_optimizer" in HAND:
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
elif "single_tensor_optimizer" in HAND:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
else:
    optimizer = optimizer_class("AdamW")(model.parameters())
twins = []
if "optimizer_offload" in HAND:
    twins = [(one, one.detach().cpu().requires_grad_()) for one in model.parameters()]
    optimizer = torch.optim.AdamW([twin for _, twin in twins])
for _ in range(int(os.environ.get("STEPS", "100"))):
    x = torch.zeros(16, 128, device="cuda", dtype=torch.long)
    if "bf16_autocast" in HAND:
        context = torch.autocast("cuda", dtype=torch.bfloat16)
    else:
        context = contextlib.nullcontext()
    with context:
        loss = nn.functional.cross_entropy(model(x).view(-1, 1000), x.view(-1))
    loss.backward()
    for one, twin in twins:
        twin.grad = one.grad.cpu()
    optimizer.step()
    for one, twin in twins:
        one.detach().copy_(twin.detach())
        one.grad = None
    optimizer.zero_grad()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
