"""Per-sample losses of an epoch stay on the device in a list for hard example mining; the list is made again in each of three epochs of fifty steps. Right: emptied with each epoch."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = DataLoader(TensorDataset(torch.randn(6400, 64), torch.randint(0, 9, (6400,))), batch_size=128, shuffle=True)
model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 9)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def run_epoch():
    losses, logits = [], []
    for x, y in data:
        x, y = x.cuda(), y.cuda()
        out = model(x)
        each = nn.functional.cross_entropy(out, y, reduction="none")
        opt.zero_grad()
        each.mean().backward()
        opt.step()
        losses.append(each.detach())
        logits.append(out.detach())
    return torch.cat(losses), torch.cat(logits)


for epoch in range(3):
    scores, _ = run_epoch()
    print(epoch, scores.topk(20).values.sum().item())
