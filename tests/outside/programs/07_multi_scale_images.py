"""A small detector-like CNN trained on images of many different sizes; reserved memory creeps up during the first part of the run and then stays, which looks like a leak but is only the caching allocator meeting bigger images. Source: https://github.com/facebookresearch/detectron2/issues/163 - ppwwyyxx established that it slowly increases at the beginning and stops, because image sizes differ and allocated memory is not returned to the driver."""
EXPECTED = {"kind": "innocent"}

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(7)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.c2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.c3 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.objectness = nn.Conv2d(64, 1, 1)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.relu(self.c2(x))
        x = F.relu(self.c3(x))
        return self.objectness(x)


def images(n):
    for _ in range(n):
        h = random.randrange(192, 513, 8)
        w = random.randrange(192, 513, 8)
        yield torch.randn(2, 3, h, w, device="cuda")


def train():
    net = Backbone().cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    meter = []
    for it, img in enumerate(images(120)):
        score = net(img)
        loss = F.binary_cross_entropy_with_logits(score, torch.zeros_like(score))
        opt.zero_grad()
        loss.backward()
        opt.step()
        meter.append(loss.item())
        if it % 30 == 29:
            print(it + 1, sum(meter[-30:]) / 30, torch.cuda.memory_reserved() >> 20, "MiB reserved")


train()
