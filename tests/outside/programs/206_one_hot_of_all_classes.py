"""A segmentation loss makes a one-hot tensor of all pixels and 600 classes, in 64-bit integers. Pattern: Dice losses written with one_hot."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["activations", "one_allocation"], "mentions": [["one_hot", "one tensor", "single", "int64", "600"]]}

import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 600
net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, CLASSES, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)


def dice(logits, target):
    wanted = F.one_hot(target, CLASSES).permute(0, 3, 1, 2)
    probability = logits.softmax(1)
    both = (probability * wanted).sum((0, 2, 3))
    return 1 - (2 * both / (probability.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1)).mean()


for step in range(5):
    x = torch.randn(6, 3, 512, 512, device="cuda")
    target = torch.randint(0, CLASSES, (6, 512, 512), device="cuda")
    loss = dice(net(x), target)
    opt.zero_grad()
    loss.backward()
    opt.step()
