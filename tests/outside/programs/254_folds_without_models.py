"""Eight folds, each with a model, an optimizer and a validation of its own; only numbers are kept. Pattern: cross-validation."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


def fold(number):
    net = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 5)).cuda()
    opt = torch.optim.Adam(net.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)
    for _ in range(12):
        x, y = torch.randn(64, 64, device="cuda"), torch.randint(0, 5, (64,), device="cuda")
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
    net.eval()
    with torch.no_grad():
        outputs = torch.cat([net(torch.randn(64, 64, device="cuda")) for _ in range(6)])
    return {"fold": number, "loss": loss.item(), "score": outputs.argmax(1).float().mean().item()}


print([fold(number)["score"] for number in range(8)])
