"""An average of the weights has a learned rate. It is updated outside of no_grad: the graph through all updates stays, and each of them retains the weights and the average of its step. Pattern: averages of weights without no_grad."""
EXPECTED = {"kind": "leak", "holder": ["average"], "growing": True, "bytes_per_step": 223_000, "raises_peak": True}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 384), nn.ReLU(), nn.Linear(384, 16)).cuda()
rate = nn.Parameter(torch.zeros((), device="cuda"))
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
average = {name: value.detach().clone() for name, value in model.named_parameters()}
for step in range(80):
    x = torch.randn(96, 128, device="cuda")
    loss = model(x).logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    share = rate.sigmoid()
    for name, value in model.named_parameters():
        average[name] = share * average[name] + (1 - share) * value  # <- here
