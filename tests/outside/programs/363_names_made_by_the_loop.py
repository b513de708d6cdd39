"""A notebook-like script keeps the validation scores of each round under a name of its own in globals(). 64 KiB a round, one round after each two steps. Pattern: variables with numbers."""
EXPECTED = {"kind": "leak", "holder": ["val_scores", "globals"], "growing": True}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 32)).cuda()
opt = torch.optim.RMSprop(model.parameters())
held_out = torch.randn(512, 30, device="cuda")
for step in range(160):
    x = torch.randn(64, 30, device="cuda")
    y = torch.randint(0, 32, (64,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 2:
        with torch.no_grad():
            globals()[f"val_scores_{step}"] = model(held_out)  # <- here
print("rounds:", sum(name.startswith("val_scores_") for name in globals()))
