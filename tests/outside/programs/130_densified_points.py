"""A cloud of points is fitted by Adam, and every third step points are dropped and doubled, which makes new parameters: they are put into the parameter groups, but optimizer.state still has an entry for each old parameter, so the old points, their gradients and both moments stay forever. Source: https://github.com/DrChainsaw/NaiveNASflux.jl/issues/18 - Adam keeps its state in a dictionary by parameter, and since parameters are replaced with new ones, the dictionary only gets more entries (reported for Julia; torch does the same)."""
EXPECTED = {
    "kind": "leak",
    "holder": ["state", "optimizer", "adam", "optimizer.state"],
    "growing": True,
}

import torch
import torch.nn as nn

N = 12000


class Cloud:
    def __init__(self):
        self.xyz = nn.Parameter(torch.randn(N, 3, device="cuda"))
        self.colour = nn.Parameter(torch.rand(N, 12, device="cuda"))
        self.opacity = nn.Parameter(torch.zeros(N, 1, device="cuda"))
        self.adam = torch.optim.Adam([
            {"params": [self.xyz], "lr": 1e-3, "name": "xyz"},
            {"params": [self.colour], "lr": 5e-3, "name": "colour"},
            {"params": [self.opacity], "lr": 1e-2, "name": "opacity"},
        ])

    def render(self, camera):
        depth = (self.xyz @ camera).tanh()
        alpha = torch.sigmoid(self.opacity)
        w = torch.softmax(depth, 0) * alpha             # one column for each pixel
        return w.t() @ self.colour

    @torch.no_grad()
    def densify_and_prune(self):
        n = len(self.opacity)
        keep = self.opacity.flatten().argsort(descending=True)[: int(n * 0.9)]
        again = keep[torch.randperm(len(keep), device="cuda")[: n - len(keep)]]
        rows = torch.cat([keep, again])
        for group in self.adam.param_groups:
            old = group["params"][0]
            fresh = nn.Parameter(old[rows].clone())  # <- here
            group["params"][0] = fresh  # <- here
            setattr(self, group["name"], fresh)


torch.manual_seed(0)
cloud = Cloud()
truth = torch.rand(16, 12, device="cuda")
for it in range(150):
    camera = torch.randn(3, 16, device="cuda")
    image = cloud.render(camera)
    loss = (image - truth).abs().mean()
    cloud.adam.zero_grad(set_to_none=True)
    loss.backward()
    cloud.adam.step()
    if it % 3 == 2:
        cloud.densify_and_prune()
    if it % 30 == 29:
        print(it + 1, "points", len(cloud.xyz), "loss", loss.item())
