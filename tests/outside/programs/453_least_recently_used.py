"""Features of a frozen encoder are cached by document. The cache has room for 60; of more the least recently used one goes. New documents come now and then, so that it is full only near the end. Pattern: LRU caches."""
EXPECTED = {"kind": "innocent"}

from collections import OrderedDict

import torch
from torch import nn


class Cache:
    def __init__(self, room):
        self.room, self.kept = room, OrderedDict()

    def get(self, key, make):
        if key in self.kept:
            self.kept.move_to_end(key)
        else:
            self.kept[key] = make()
            if len(self.kept) > self.room:
                self.kept.popitem(last=False)
        return self.kept[key]


encoder = nn.Linear(256, 256).cuda().requires_grad_(False)
model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 2)).cuda()
opt = torch.optim.Adam(model.parameters())
cache = Cache(60)
for step in range(150):
    document = step // 2 if step % 5 else max(step // 2 - 7, 0)
    features = cache.get(document, lambda: encoder(torch.randn(128, 256, device="cuda")))
    loss = model(features).logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
