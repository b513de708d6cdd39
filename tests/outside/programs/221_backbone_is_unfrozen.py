"""Ten steps train the head; then the backbone is unfrozen, and the first step of Adam makes two moments for all of it. Pattern: fine-tuning that ends at the first step after unfreezing."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["optimizer"], "mentions": [["8-bit", "SGD", "state", "Adam"]]}

import torch
from torch import nn

backbone = nn.Sequential(*[nn.Linear(6000, 6000) for _ in range(8)]).cuda().requires_grad_(False)
head = nn.Linear(6000, 3).cuda()
opt = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=1e-4)
for step in range(20):
    if step == 10:
        backbone.requires_grad_(True)
    x = torch.randn(16, 6000, device="cuda")
    loss = nn.functional.cross_entropy(head(backbone(x)), torch.randint(0, 3, (16,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
