"""Images are sampled from noise in twelve steps each. A callback keeps the state after every step for a preview of the image; nobody clears it between two images. 192 KiB a step. Pattern: callbacks of a sampler."""
EXPECTED = {"kind": "leak", "holder": ["frames", "Preview", "preview"], "growing": True}

import torch
from torch import nn


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(12, 32)
        self.up, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x, t):
        return self.down(torch.relu(self.up(x) + self.time(t)[:, :, None, None]))


class Preview:
    def __init__(self):
        self.frames = []

    def __call__(self, t, x):
        self.frames.append(x)  # <- here

    def last(self):
        return self.frames[-1].mean().item()


@torch.no_grad()
def sample(model, callback):
    x = torch.randn(4, 3, 64, 64, device="cuda")
    for t in reversed(range(12)):
        x = x - 0.1 * model(x, torch.full((4,), t, device="cuda"))
        callback(t, x)
    return x.clamp(-1, 1).cpu()


model, preview = Denoiser().cuda().eval(), Preview()
images = []
for number in range(20):
    images.append(sample(model, preview))
    print(number, preview.last() == preview.last())
