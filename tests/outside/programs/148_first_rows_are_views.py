"""One row of each batch is kept for a figure. A row is a view: it keeps the whole batch. Pattern: documented under Tensor views, and a frequent surprise."""
EXPECTED = {"kind": "leak", "holder": ["examples"], "growing": True}

import torch
from torch import nn

examples = []
ae = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 128), nn.ReLU(), nn.Linear(128, 3 * 32 * 32)).cuda()
opt = torch.optim.Adam(ae.parameters(), lr=1e-3)
for step in range(60):
    images = torch.rand(64, 3, 32, 32, device="cuda")
    loss = (ae(images) - images.flatten(1)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    examples.append(images[0])  # <- here
print(len(examples), "examples")
