"""Five copies of the weights are kept for an average, the oldest is overwritten. Pattern: latest weight averaging."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
slots = {}
for step in range(120):
    x = torch.randn(64, 64, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 6 == 5:
        slots[f"copy{step // 6 % 5}"] = {name: value.clone() for name, value in net.state_dict().items()}
print(sorted(slots))
