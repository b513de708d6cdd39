"""An image restoration run with an SSIM-like metric object that collects all predictions and targets on the GPU to be computed at the end; memory rises with every batch until the card is full. Source: https://github.com/Lightning-AI/torchmetrics/issues/1094 - the maintainer established that the metric stores preds and target of all batches in order to compute over all of them, the functional form does not."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["leak"],
            "holder": ["preds", "target", "ssim", "StructuralSimilarity", "metric"], "growing": True,
            "mentions": [["preds", "target", "ssim"]]}

# Arithmetic: a batch 32x3x256x256 floats = 24 MiB; prediction + target = 48 MiB kept per step.
# Working memory of a step is about 300 MiB. So it dies after roughly (2572-300)/48 = 47 to
# (3072-300)/48 = 57 steps; 200 are asked for (9600 MiB).
import torch
import torch.nn as nn
import torch.nn.functional as F


class StructuralSimilarity:
    def __init__(self):
        self.preds, self.target = [], []

    def update(self, preds, target):
        self.preds.append(preds)  # <- here
        self.target.append(target)  # <- here

    def compute(self):
        p, t = torch.cat(self.preds), torch.cat(self.target)
        mp, mt = F.avg_pool2d(p, 11, 1), F.avg_pool2d(t, 11, 1)
        return ((2 * mp * mt + 1e-4) / (mp * mp + mt * mt + 1e-4)).mean().item()


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 3, 3, padding=1)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


net = Restorer().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
ssim = StructuralSimilarity()
for step in range(200):
    clean = torch.rand(32, 3, 256, 256, device="cuda")
    restored = net(clean + 0.1 * torch.randn_like(clean))
    loss = F.l1_loss(restored, clean)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ssim.update(restored.detach(), clean)
    if step % 20 == 0:
        print(step, loss.item())
print("ssim", ssim.compute())
