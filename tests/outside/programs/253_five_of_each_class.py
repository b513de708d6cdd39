"""A memory keeps at most five examples of each of twenty classes; batches bring a random class. Pattern: exemplars of continual learning."""
EXPECTED = {"kind": "innocent"}

import random
from collections import defaultdict

import torch
from torch import nn

MOST = 5


class Exemplars:
    def __init__(self):
        self.of_class = defaultdict(list)

    def offer(self, label, x):
        kept = self.of_class[label]
        if len(kept) < MOST:
            kept.append(x.clone())
        elif random.random() < 0.2:
            kept[random.randrange(MOST)] = x.clone()

    def some(self):
        return torch.cat([one[0] for one in self.of_class.values()]) if self.of_class else None


random.seed(8)
memory = Exemplars()
net = nn.Linear(64, 20).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(220):
    x, label = torch.randn(32, 64, device="cuda"), random.randrange(20)
    loss = nn.functional.cross_entropy(net(x), torch.full((32,), label, device="cuda"))
    if (old := memory.some()) is not None:
        loss = loss + net(old).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    memory.offer(label, x)
