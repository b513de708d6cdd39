"""Continual learning with a rehearsal list filled by reservoir sampling: it grows until it holds 480 examples, and afterwards a new example replaces a random old one (or is dropped), so the rise ends for good. Source: none, a common pattern."""
EXPECTED = {"kind": "innocent"}

import random
import torch
from torch import nn


class Reservoir:
    def __init__(self, capacity, seed=0):
        self.capacity = capacity
        self.seen = 0
        self.items = []
        self.rng = random.Random(seed)

    def offer(self, image, label):
        self.seen += 1
        if len(self.items) < self.capacity:
            self.items.append((image.clone(), label))
            return
        j = self.rng.randrange(self.seen)
        if j < self.capacity:
            self.items[j] = (image.clone(), label)

    def draw(self, n):
        picked = self.rng.sample(self.items, min(n, len(self.items)))
        images = torch.stack([i for i, _ in picked])
        labels = torch.tensor([l for _, l in picked]).cuda()
        return images, labels


class SmallConv(nn.Module):
    def __init__(self, n_out):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(6)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(64 * 36, 512), nn.ReLU(), nn.Linear(512, n_out))

    def forward(self, x):
        return self.head(self.features(x))


pyrng = random.Random(5)
model = SmallConv(50).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
memory = Reservoir(capacity=480)
criterion = nn.CrossEntropyLoss()

for task in range(5):
    losses = []
    for _ in range(26):
        labels = [10 * task + pyrng.randrange(10) for _ in range(10)]
        images = torch.randn(10, 3, 96, 96, device="cuda")
        loss = criterion(model(images), torch.tensor(labels).cuda())
        if memory.items:
            old_x, old_y = memory.draw(10)
            loss = loss + criterion(model(old_x), old_y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for im, la in zip(images, labels):
            memory.offer(im, la)
        losses.append(loss.item())
    print(f"task {task}: loss {sum(losses) / len(losses):.3f}, memory {len(memory.items)} of {memory.seen} seen")
