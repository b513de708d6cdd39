"""Fine-tuning where one more block is activated every dozen steps: each newly active block gets gradients and Adam moments, so memory rises at every activation and stays level once all blocks are active. Source: https://github.com/OptimalScale/LMFlow/issues/778 - observed there that memory rises each time new layers are activated and does not when layers were active before."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn


class ResidualBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Backbone(nn.Module):
    def __init__(self, dim=640, depth=6):
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 50)

    def forward(self, x):
        for b in self.blocks:
            x = b(x)
        return self.head(x)


class GradualUnfreezer:
    def __init__(self, model, every):
        self.model, self.every, self.active = model, every, 0
        for b in model.blocks:
            b.requires_grad_(False)

    def at_step(self, step):
        if step and step % self.every == 0 and self.active < len(self.model.blocks):
            self.active += 1
            self.model.blocks[-self.active].requires_grad_(True)
            print("step", step, "-> active blocks:", self.active)


net = Backbone().to("cuda")
unfreezer = GradualUnfreezer(net, every=11)
optimizer = torch.optim.Adam(net.parameters(), lr=3e-4)

for step in range(105):
    unfreezer.at_step(step)
    feats = torch.randn(64, 640, device="cuda")
    target = torch.randint(0, 50, (64,)).to("cuda")
    loss = nn.functional.cross_entropy(net(feats), target)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()

print("finished", loss.item())
