"""The three best states of the weights stay on the device, by the loss of a validation; a better one replaces the worst, and at the end they are averaged. Right: bounded, and used at the end."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
best = []
for step in range(150):
    x = torch.randn(128, 256, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 9:
        with torch.no_grad():
            score = (net(x) - x).abs().mean().item() - 0.001 * step
        best.append((score, {name: value.detach().clone() for name, value in net.state_dict().items()}))
        best.sort(key=lambda entry: entry[0])
        del best[3:]
averaged = {name: torch.stack([state[name] for _, state in best]).mean(0) for name in best[0][1]}
net.load_state_dict(averaged)
