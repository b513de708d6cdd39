"""A GAN grows from 4x4 to 32x32 pixels: every 15 steps one block is added to both networks and to their optimizers, so weights, Adam moments and activations rise in stairs, and after the last block nothing is added for the rest of the run. Source: https://github.com/nashory/pggan-pytorch/issues/16 - reported as a leak while the network grows; the reporter found that it was none, but the size of the test batch at the higher resolutions."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
import torch.nn.functional as F

CH = 64
STAGES = 3
GROW_EVERY = 15


class G(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.ConvTranspose2d(64, CH, 4)
        self.blocks = nn.ModuleList()
        self.rgb = nn.ModuleList([nn.Conv2d(CH, 3, 1)])

    def grow(self):
        self.blocks.append(nn.Sequential(nn.Conv2d(CH, CH, 3, padding=1), nn.LeakyReLU(0.2)).cuda())
        self.rgb.append(nn.Conv2d(CH, 3, 1).cuda())

    def forward(self, z, alpha):
        h = F.leaky_relu(self.start(z[:, :, None, None]), 0.2)
        before = h
        for b in self.blocks:
            before = h
            h = b(F.interpolate(h, scale_factor=2))
        img = self.rgb[-1](h)
        if alpha < 1 and len(self.blocks):
            old = F.interpolate(self.rgb[-2](before), scale_factor=2)
            img = alpha * img + (1 - alpha) * old
        return torch.tanh(img)


class D(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry = nn.ModuleList([nn.Conv2d(3, CH, 1)])
        self.blocks = nn.ModuleList()
        self.final = nn.Sequential(nn.Flatten(), nn.Linear(CH * 16, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def grow(self):
        self.blocks.append(nn.Sequential(nn.Conv2d(CH, CH, 3, padding=1), nn.LeakyReLU(0.2), nn.AvgPool2d(2)).cuda())
        self.entry.append(nn.Conv2d(3, CH, 1).cuda())

    def forward(self, x):
        h = self.entry[-1](x)
        for b in reversed(self.blocks):
            h = b(h)
        return self.final(h)


torch.manual_seed(4)
gen, dis = G().cuda(), D().cuda()
opt_g = torch.optim.Adam(gen.parameters(), lr=1e-3, betas=(0.0, 0.99))
opt_d = torch.optim.Adam(dis.parameters(), lr=1e-3, betas=(0.0, 0.99))
z_test = torch.randn(8, 64, device="cuda")
preview = None
side, alpha = 4, 1.0

for it in range(110):
    if it and it % GROW_EVERY == 0 and len(gen.blocks) < STAGES:
        for net, opt in ((gen, opt_g), (dis, opt_d)):
            net.grow()
            known = {id(p) for g in opt.param_groups for p in g["params"]}
            opt.add_param_group({"params": [p for p in net.parameters() if id(p) not in known]})
        side *= 2
        alpha = 0.0
        print("grown to", side)
    alpha = min(1.0, alpha + 1 / 12)

    real = torch.rand(4, 3, side, side, device="cuda") * 2 - 1
    fake = gen(torch.randn(4, 64, device="cuda"), alpha)
    loss_d = F.softplus(-dis(real)).mean() + F.softplus(dis(fake.detach())).mean()
    opt_d.zero_grad()
    loss_d.backward()
    opt_d.step()

    loss_g = F.softplus(-dis(fake)).mean()
    opt_g.zero_grad()
    loss_g.backward()
    opt_g.step()
    if it % 10 == 9:
        with torch.no_grad():
            preview = gen(z_test, alpha)
        print(it + 1, "d", round(loss_d.item(), 3), "g", round(loss_g.item(), 3), "preview", tuple(preview.shape))
