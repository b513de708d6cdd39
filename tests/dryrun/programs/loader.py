"""A plain loop with a DataLoader, a scheduler and clipped gradients. HAND names the changes that are made in the code."""

import os

import torch
from by_hand import optimizer_class, sharded  # beside this file
from torch import nn

HAND = os.environ.get("HAND", "").split(",")
PARTS = 2 if "accumulation" in HAND else 1
rows = torch.utils.data.TensorDataset(torch.zeros(16384, 256))
loader = torch.utils.data.DataLoader(rows, batch_size=2048 // PARTS, shuffle=True)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
sharded(model)
optimizer = optimizer_class("AdamW")(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
steps = int(os.environ.get("STEPS", "100"))
for _ in range(100):
    for number, (x,) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x.cuda()), x.cuda())
        (loss / PARTS).backward() if PARTS > 1 else loss.backward()
        if (number + 1) % PARTS == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            steps -= 1
        if not steps:
            break
    if not steps:
        break
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
