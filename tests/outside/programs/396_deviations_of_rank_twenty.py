"""SWAG: after 30 steps the deviation of the weights from their mean is added to a matrix every third step, which has at most 20 rows; the first row goes when there are more. Right: bounded. Pattern: low-rank posteriors."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

MAX_RANK = 20
net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 32)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
mean = parameters_to_vector(net.parameters()).detach().clone()
deviations = torch.empty(0, mean.numel(), device="cuda")
collected = 0
for step in range(130):
    x = torch.randn(128, 32, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step >= 30 and step % 3 == 0:
        with torch.no_grad():
            now = parameters_to_vector(net.parameters())
            mean.mul_(collected / (collected + 1)).add_(now / (collected + 1))
            collected += 1
            deviations = torch.cat([deviations, (now - mean).unsqueeze(0)])
            if len(deviations) > MAX_RANK:
                deviations = deviations[1:]
print(deviations.shape)
