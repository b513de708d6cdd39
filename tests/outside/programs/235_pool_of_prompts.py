"""Each task adds a prompt to a ParameterList of the model, and only the newest is used. 160 KiB, and its gradient, for each 6 steps. Pattern: prompt tuning task after task."""
EXPECTED = {"kind": "leak", "holder": ["prompts"], "growing": True}

import torch
from torch import nn


class Prompted(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.TransformerEncoderLayer(128, 4, 128, batch_first=True).requires_grad_(False)
        self.prompts = nn.ParameterList()

    def begin(self):
        self.prompts.append(nn.Parameter(torch.randn(320, 128, device="cuda")))  # <- here
        return self.prompts[-1]

    def forward(self, x):
        prompt = self.prompts[-1].expand(len(x), -1, -1)
        return self.body(torch.cat([prompt, x], 1)).mean(1)


model = Prompted().cuda()
for task in range(18):
    opt = torch.optim.SGD([model.begin()], lr=0.1)
    for _ in range(6):
        loss = model(torch.randn(4, 16, 128, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
