"""Fitting a cloud of splats: until two thirds of the run the cloud is densified at intervals, so parameters and Adam moments grow step by step; after that the number of splats is fixed. Source: https://github.com/Anttwo/SuGaR/issues/100 - the author explained that the number of Gaussians rises progressively as they densify during optimisation, which is expected."""
EXPECTED = {"kind": "innocent"}

import random

import torch
import torch.nn as nn

FIELDS = {"xyz": 3, "scale": 3, "rotation": 4, "opacity": 1, "colour": 48}


class SplatCloud(nn.Module):
    def __init__(self, n):
        super().__init__()
        for name, width in FIELDS.items():
            self.register_parameter(name, nn.Parameter(torch.randn(n, width, device="cuda") * 0.1))

    def __len__(self):
        return self.xyz.shape[0]

    def render(self, camera):
        depth = self.xyz @ camera
        weight = torch.sigmoid(self.opacity) * torch.exp(-self.scale.pow(2).sum(1, keepdim=True))
        weight = weight * torch.nn.functional.normalize(self.rotation, dim=1).sum(1, keepdim=True)
        shade = self.colour.view(len(self), 16, 3).mean(1)
        return (weight * shade).t() @ depth / len(self)


def append_rows(cloud, optimizer, picked):
    """Clone the picked splats, with empty moments for the clones."""
    for group in optimizer.param_groups:
        name, old = group["name"], group["params"][0]
        rows = old.detach()[picked]
        state = optimizer.state.pop(old, None)
        new = nn.Parameter(torch.cat([old.detach(), rows + 0.01 * torch.randn_like(rows)]))
        if state is not None:
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.cat([state[key], torch.zeros_like(rows)])
            optimizer.state[new] = state
        group["params"][0] = new
        setattr(cloud, name, new)


random.seed(0)
cloud = SplatCloud(60_000)
optimizer = torch.optim.Adam([{"params": [getattr(cloud, n)], "name": n, "lr": 1e-3} for n in FIELDS], eps=1e-15)

densify_until, interval = 80, 8
for iteration in range(1, 121):
    camera = torch.randn(3, 24, device="cuda")
    photo = torch.rand(3, 24, device="cuda")
    loss = (cloud.render(camera) - photo).abs().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)

    if iteration % interval == 0 and iteration <= densify_until:
        count = int(len(cloud) * random.uniform(0.1, 0.22))
        picked = torch.randperm(len(cloud))[:count].cuda()
        append_rows(cloud, optimizer, picked)
        print("iteration", iteration, "splats", len(cloud))

print("done with", len(cloud), "splats, loss", loss.item())
