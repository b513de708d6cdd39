"""The gradients are never set to zero, so they add up from step to step. The training is wrong, and its memory is constant. Pattern: forgotten zero_grad."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

model = nn.GRU(32, 64, batch_first=True).cuda()
head = nn.Linear(64, 3).cuda()
opt = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=1e-3)
losses = []
for step in range(90):
    x = torch.randn(32, 12, 32, device="cuda")
    out, _ = model(x)
    loss = nn.functional.cross_entropy(head(out[:, -1]), torch.randint(0, 3, (32,), device="cuda"))
    loss.backward()
    opt.step()
    losses.append(loss.item())
