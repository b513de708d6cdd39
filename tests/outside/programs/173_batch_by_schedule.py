"""The batch is doubled every 25 steps instead of lowering the learning rate. Right: larger batches need more memory, nothing is kept."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
batch = 64
for step in range(125):
    if step and step % 25 == 0:
        batch *= 2
    x = torch.randn(batch, 256, device="cuda")
    y = torch.randint(0, 10, (batch,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 24:
        print(step, batch, loss.item())
