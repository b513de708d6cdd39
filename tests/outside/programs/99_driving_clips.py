"""Imitation from large driving images: in the loop the new batch is moved to the device while the names still hold the last one, so two batches and the last outputs are alive at once and one batch stays alive through the evaluation; it does not add up. Source: https://github.com/dotchen/LearningByCheating/pull/19 - a change to delete the device tensors at the end of each iteration; the discussion settled that the names live on until they are overwritten, which costs one batch and is not a growing leak, and it was closed."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn

DEVICE = "cuda"


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        chans = [3, 24, 36, 48, 64]
        self.conv = nn.Sequential(*[m for a, b in zip(chans, chans[1:]) for m in (nn.Conv2d(a, b, 5, 2, 2), nn.ELU())])
        self.fc = nn.Sequential(nn.Linear(64 * 10 * 16, 512), nn.ELU(), nn.Linear(512, 4 * 5 * 2))

    def forward(self, image, speed, command):
        h = self.fc(self.conv(image).flatten(1)).view(-1, 4, 10)
        h = h[torch.arange(len(h), device=h.device), command]
        return h.view(-1, 5, 2) * (1 + speed.view(-1, 1, 1))


class Clips:
    """A few clips held in host memory and shuffled into batches."""

    def __init__(self, n_batches, seed):
        g = torch.Generator().manual_seed(seed)
        self.pool = [torch.randn(32, 3, 160, 256, generator=g) for _ in range(3)]
        self.n = n_batches

    def __iter__(self):
        for i in range(self.n):
            rgb = self.pool[i % len(self.pool)]
            yield rgb, torch.rand(32), torch.randint(0, 4, (32,)), torch.randn(32, 5, 2)


def train_or_eval(clips, net, optim, training):
    net.train(training)
    total = 0.0
    with torch.set_grad_enabled(training):
        for rgb, speed, command, waypoints in clips:
            rgb_d = rgb.to(DEVICE)
            speed_d = speed.to(DEVICE)
            command_d = command.to(DEVICE)
            waypoints_d = waypoints.to(DEVICE)

            pred = net(rgb_d, speed_d, command_d)
            loss = (pred - waypoints_d).abs().mean()
            if training:
                optim.zero_grad()
                loss.backward()
                optim.step()
            total += loss.item()
    return total / clips.n


net = Policy().to(DEVICE)
optim = torch.optim.Adam(net.parameters(), lr=1e-4)
train, val = Clips(16, seed=1), Clips(4, seed=2)
for epoch in range(5):
    a = train_or_eval(train, net, optim, True)
    b = train_or_eval(val, net, optim, False)
    print(f"epoch {epoch} train {a:.4f} val {b:.4f}")
