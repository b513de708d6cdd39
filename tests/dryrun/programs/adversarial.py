"""A generator and a discriminator with two optimizers. HAND names the changes that are made in the code."""

import contextlib
import os

import torch
from by_hand import optimizer_class, sharded  # beside this file
from torch import nn
from torch.utils.checkpoint import checkpoint

HAND = os.environ.get("HAND", "").split(",")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Net(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(256, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if "checkpointing" in HAND else block(x)
        return self.head(x)


def autocast() -> contextlib.AbstractContextManager:
    return torch.autocast("cuda", dtype=torch.bfloat16) if "bf16_autocast" in HAND else contextlib.nullcontext()


generator, discriminator = Net(256).cuda(), Net(1).cuda()
for net in (generator, discriminator):
    sharded(net, net.blocks)
options = {"fused": True} if "fused_optimizer" in HAND else {}
of_generator = optimizer_class("Adam")(generator.parameters(), **options)
of_discriminator = optimizer_class("Adam")(discriminator.parameters(), **options)
for _ in range(int(os.environ.get("STEPS", "100"))):
    noise, real = torch.zeros(1024, 256, device="cuda"), torch.zeros(1024, 256, device="cuda")
    of_discriminator.zero_grad()
    with autocast():
        fake = generator(noise)
        loss = discriminator(fake.detach()).mean() - discriminator(real).mean()
    loss.backward()
    of_discriminator.step()
    of_generator.zero_grad()
    with autocast():
        loss = -discriminator(fake).mean()
    loss.backward()
    of_generator.step()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
