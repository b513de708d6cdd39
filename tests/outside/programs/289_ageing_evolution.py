"""Evolution with a population of ten networks: each trial trains a child for eight steps and puts it in; from the eleventh on the oldest dies. Pattern: regularised evolution."""
EXPECTED = {"kind": "innocent"}

import random
from collections import deque

import torch
from torch import nn

random.seed(5)
population = deque()


def train(width):
    net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 64)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(8):
        x = torch.randn(64, 64, device="cuda")
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return (net, loss.item())


for trial in range(26):
    if population:
        parent = min(random.sample(sorted(population, key=id), min(3, len(population))), key=lambda one: one[2])
        width = max(32, parent[0] + random.choice((-16, 16)))
    else:
        width = 96
    net, score = train(width)
    population.append((width, net, score))
    if len(population) > 10:
        population.popleft()
