"""A sketch-to-photo GAN with a history of generated photos for the discriminator: the photos are generated for the discriminator's turn with gradients on and are put into the history as they are; the discriminator sees a detached version, but each remembered photo holds the generator's activations. Source: https://github.com/zackchase/mxnet-the-straight-dope/pull/293 - the author ran out of memory with the image pool inside the recorded block and explained that the pool then keeps the recorded forward results of up to 50 images; filling it outside cured it."""
EXPECTED = {"kind": "leak", "holder": ["history", "PhotoHistory", "remembered"], "growing": True}

import random

import torch
import torch.nn as nn


def down(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.InstanceNorm2d(o), nn.LeakyReLU(0.2))


def up(i, o):
    return nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1), nn.InstanceNorm2d(o), nn.ReLU())


class Painter(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.d1, self.d2, self.d3 = down(1, c), down(c, 2 * c), down(2 * c, 4 * c)
        self.u3, self.u2 = up(4 * c, 2 * c), up(4 * c, c)
        self.last = nn.ConvTranspose2d(2 * c, 3, 4, 2, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(a)
        h = self.u3(self.d3(b))
        h = self.u2(torch.cat([h, b], 1))
        return torch.tanh(self.last(torch.cat([h, a], 1)))


class PhotoHistory:
    def __init__(self, capacity):
        self.capacity = capacity
        self.remembered = []

    def swap(self, photos):
        if len(self.remembered) < self.capacity:
            self.remembered.append(photos)  # <- here
            return photos
        k = random.randrange(self.capacity)
        old, self.remembered[k] = self.remembered[k], photos  # <- here
        return old if random.random() < 0.5 else photos


def bce(logits, real):
    target = torch.ones_like(logits) if real else torch.zeros_like(logits)
    return nn.functional.binary_cross_entropy_with_logits(logits, target)


random.seed(0)
painter = Painter().cuda()
critic = nn.Sequential(down(4, 24), down(24, 48), down(48, 96), nn.Conv2d(96, 1, 4, 1, 1)).cuda()
opt_p = torch.optim.Adam(painter.parameters(), 2e-4, betas=(0.5, 0.999))
opt_c = torch.optim.Adam(critic.parameters(), 2e-4, betas=(0.5, 0.999))
history = PhotoHistory(capacity=200)

for step in range(90):
    sketch = torch.randn(2, 1, 128, 128, device="cuda")
    photo = torch.randn(2, 3, 128, 128, device="cuda")

    # critic
    painted = torch.cat([sketch, painter(sketch)], 1)  # <- here
    shown = history.swap(painted)
    loss_c = bce(critic(torch.cat([sketch, photo], 1)), True) + bce(critic(shown.detach()), False)
    opt_c.zero_grad()
    loss_c.backward()
    opt_c.step()

    # painter
    out = painter(sketch)
    loss_p = bce(critic(torch.cat([sketch, out], 1)), True) + 100 * (out - photo).abs().mean()
    opt_p.zero_grad()
    loss_p.backward()
    opt_p.step()

    if step % 30 == 29:
        print(step + 1, loss_c.item(), loss_p.item())
