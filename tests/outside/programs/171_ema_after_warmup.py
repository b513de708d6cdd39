"""An exponential moving average of the weights begins after 30 steps and is swapped in for each evaluation. Right: one more copy of the weights, and it stays one."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(nn.Linear(200, 600), nn.SiLU(), nn.Linear(600, 200)).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
average = None
for step in range(120):
    x = torch.randn(128, 200, device="cuda")
    loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 30:
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    elif average is not None:
        average.update_parameters(model)
    if average is not None and step % 20 == 19:
        with torch.no_grad():
            held = average(torch.randn(512, 200, device="cuda")).square().mean().item()
        print(step, held)
