"""A model trains with SGD and momentum on an almost full card; when the exponential moving average is switched on after some steps, the deep copy of the model does not fit any more. Source: https://github.com/mosaicml/composer/pull/1941 - the pull request established that the EMA algorithm costs copies of the model parameters on the device (2x before, 1x after the change)."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["weights"],
            "mentions": [["ema", "moving average", "deepcopy", "copy of the model", "second copy"]]}

# Arithmetic: 8 layers x 100 MiB = 800 MiB. Weights + gradients + momentum = 2400 MiB, fits (usable
# >= 2572). The EMA copy makes 3200 MiB > 3072 MiB: dies in deepcopy at step 5.
from copy import deepcopy

import torch
from torch import nn


class ModelEma:
    def __init__(self, model, decay=0.9998):
        self.module = deepcopy(model)
        self.module.eval()
        self.decay = decay

    def update(self, model):
        with torch.no_grad():
            for e, m in zip(self.module.state_dict().values(), model.state_dict().values()):
                e.mul_(self.decay).add_(m, alpha=1 - self.decay)


class Stack(nn.Module):
    def __init__(self, width=5120, depth=8):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(width, width, bias=False, device="cuda") for _ in range(depth)])

    def forward(self, x):
        return self.body(x)


model = Stack()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
ema, ema_start = None, 5
for step in range(60):
    x = torch.randn(4, 5120, device="cuda")
    loss = (model(x) - 1).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == ema_start:
        ema = ModelEma(model)
    if ema is not None:
        ema.update(model)
    print(step, loss.item())
