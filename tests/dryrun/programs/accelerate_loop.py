"""A loop with Accelerate, over PyTorch's own transformer layers. HAND names the changes that are made in the code."""

import os

import torch
from accelerate import Accelerator
from by_hand import optimizer_class  # beside this file
from torch import nn
from torch.utils.checkpoint import checkpoint

HAND = os.environ.get("HAND", "").split(",")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, 128), nn.Linear(128, 1000)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if "checkpointing" in HAND else layer(x)
        return self.head(x)


accelerator = Accelerator(mixed_precision="bf16" if "bf16_autocast" in HAND else None)
model = Net()
options = {"fused": True} if "fused_optimizer" in HAND else {}
optimizer = optimizer_class("AdamW")(model.parameters(), **options)
parts = 2 if "accumulation" in HAND else 1
rows = torch.utils.data.TensorDataset(torch.zeros(512, 64, dtype=torch.long))
loader = torch.utils.data.DataLoader(rows, batch_size=32 // parts, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps, number = int(os.environ.get("STEPS", "100")), 0
while number < steps * parts:
    for (x,) in loader:
        number += 1
        loss = nn.functional.cross_entropy(model(x).view(-1, 1000), x.view(-1))
        accelerator.backward(loss / parts if parts > 1 else loss)
        if number % parts == 0:
            optimizer.step()
            optimizer.zero_grad()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
