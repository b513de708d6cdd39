"""Encoded prompts are cached by number; when there are more than 24, the first that was put in is deleted. Numbers never come again. Pattern: caches with a size."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class PromptCache:
    def __init__(self, encoder, most):
        self.encoder, self.most = encoder, most
        self.encoded = {}

    def get(self, number):
        if number not in self.encoded:
            with torch.no_grad():
                self.encoded[number] = self.encoder(torch.randn(16, 64, device="cuda"))
            if len(self.encoded) > self.most:
                del self.encoded[next(iter(self.encoded))]
        return self.encoded[number]


cache = PromptCache(nn.Linear(64, 256).cuda(), 24)
model = nn.Linear(256, 16).cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(110):
    both = torch.cat([cache.get(step), cache.get(max(0, step - 5))])
    loss = model(both).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
