"""A forward hook collects attention maps for a visualisation and is left on during the whole training. Pattern: visualisation hooks."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["leak"], "holder": ["maps"]}

import torch
from torch import nn

maps = []
attention = nn.MultiheadAttention(128, 4, batch_first=True).cuda()
head = nn.Linear(128, 2).cuda()
attention.register_forward_hook(lambda module, args, out: maps.append(out[1]))
opt = torch.optim.Adam([*attention.parameters(), *head.parameters()])
for step in range(4000):
    x = torch.randn(16, 512, 128, device="cuda")
    out, _ = attention(x, x, x)
    loss = head(out).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
