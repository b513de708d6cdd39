"""Every seven steps a validation collects its outputs in a list, joins them, and computes one number; the joined outputs of the last validation stay until the next. Pattern: validation inside the loop."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
opt = torch.optim.AdamW(net.parameters())
held_out = torch.randn(12, 128, 64, device="cuda")
best = float("inf")
for step in range(126):
    x = torch.randn(128, 64, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 7 == 6:
        net.eval()
        outputs = []
        with torch.no_grad():
            for batch in held_out:
                outputs.append(net(batch))
        joined = torch.cat(outputs)
        best = min(best, (joined - held_out.flatten(0, 1)).square().mean().item())
        net.train()
