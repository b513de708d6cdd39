"""A cache of encoded prompts keeps the order of use in one list and the tensors in a dictionary. What is too old leaves the list, and stays in the dictionary. 32 KiB a step. Pattern: LRU caches written by hand."""
EXPECTED = {"kind": "leak", "holder": ["tensors", "PromptCache", "cache"], "growing": True}

import torch
from torch import nn


class PromptCache:
    def __init__(self, size):
        self.size = size
        self.order = []
        self.tensors = {}

    def put(self, key, tensor):
        self.order.append(key)
        self.tensors[key] = tensor  # <- here
        if len(self.order) > self.size:
            self.order.pop(0)

    def get(self, key):
        return self.tensors.get(key)


encoder = nn.Linear(32, 64).cuda().requires_grad_(False)
net = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 64)).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
cache = PromptCache(16)
for step in range(110):
    key = f"prompt {step}"
    code = cache.get(key)
    if code is None:
        code = encoder(torch.randn(128, 32, device="cuda"))
        cache.put(key, code)
    loss = (net(code) - code).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
