"""A deque without maxlen collects the features of each step on the device until the card is full. Pattern: queues of negatives."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["leak"], "holder": ["negatives", "Negatives"], "mentions": [["negatives"]]}

from collections import deque

import torch
from torch import nn


class Negatives:
    def __init__(self):
        self.negatives = deque()

    def put(self, features):
        self.negatives.append(features.detach())  # <- here

    def some(self, number):
        return [self.negatives[-n - 1] for n in range(min(number, len(self.negatives)))]


encoder = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda()
opt = torch.optim.AdamW(encoder.parameters())
store = Negatives()
for step in range(400):
    features = encoder(torch.randn(4096, 256, device="cuda"))
    loss = features.square().mean()
    for old in store.some(2):
        loss = loss + (features * old).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    store.put(features)
