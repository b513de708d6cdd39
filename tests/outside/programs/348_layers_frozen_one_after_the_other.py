"""Layers are unfrozen one after the other, each with a parameter group of its own in one optimizer, whose state grows until all of them train. Pattern: gradual unfreezing."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(8)).cuda().requires_grad_(False)
head = nn.Linear(96, 12).cuda()
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)


def forward(x):
    for layer in layers:
        x = x + torch.tanh(layer(x))
    return head(x)


frozen = list(layers)
for step in range(100):
    if step % 10 == 9 and frozen:
        layer = frozen.pop().requires_grad_(True)
        optimizer.add_param_group({"params": list(layer.parameters()), "lr": 1e-4})
    loss = nn.functional.cross_entropy(forward(torch.randn(64, 96, device="cuda")), torch.zeros(64, dtype=torch.long, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(optimizer.param_groups))
