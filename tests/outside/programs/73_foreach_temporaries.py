"""Weights, gradients and both Adam moments fit, but the default multi-tensor step makes its temporary for all parameters at once, and that copy of the model's size is what does not fit. Source: https://github.com/pytorch/pytorch/issues/97712 - since 2.0 the optimizers take the foreach path by default, whose intermediates raise the peak by about the size of the parameters; foreach=False or fused avoids it."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["optimizer"],
            "mentions": [["foreach", "fused", "temporar", "intermediate"]]}

# Arithmetic: 12 layers of 5120 x 5120 floats = 12 x 100 MiB = 1200 MiB of weights, as much of gradients, 2400 MiB of
# moments: 4800 MiB fit in 6144 - 430 = 5714 MiB. The square roots of the second moments, all 12 at once, are
# 1200 MiB more = 6000 MiB: dies in the first step, inside the foreach path. One parameter at a time needs 100 MiB.
import torch
from torch import nn

torch.manual_seed(1)


def block(width):
    return nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh())


class Autoencoder(nn.Module):
    def __init__(self, width=5120, depth=12):
        super().__init__()
        self.body = nn.Sequential(*(block(width) for _ in range(depth)))

    def forward(self, x):
        return self.body(x)


def train(model, iterations=30, batch_size=16):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    for it in range(iterations):
        spectra = torch.randn(batch_size, 5120, device="cuda")
        noisy = spectra + 0.1 * torch.randn_like(spectra)
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(noisy), spectra)
        loss.backward()
        optimizer.step()  # <- here
        scheduler.step()
        print(f"{it:3d} {loss.item():.5f}")


with torch.device("cuda"):
    autoencoder = Autoencoder()
train(autoencoder)
