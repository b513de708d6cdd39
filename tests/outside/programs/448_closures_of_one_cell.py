"""Each epoch puts a function that shows the latest features into a list. The functions share one variable, so that only the latest features live, however long the list. Pattern: closures in loops."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(70, 512), nn.ReLU()).cuda()
head = nn.Linear(512, 11).cuda()
opt = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)


def train(epochs, steps):
    shown = []
    for epoch in range(epochs):
        for _ in range(steps):
            features = model(torch.randn(256, 70, device="cuda"))
            loss = head(features).logsumexp(-1).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        features = features.detach()
        shown.append(lambda: features.norm().item())
    return shown


print(len(train(12, 10)))
