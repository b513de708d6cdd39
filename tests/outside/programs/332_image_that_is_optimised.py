"""An image is optimised by its own gradient, while a small network that corrects the gradient is trained with it. The image goes on with its graph. Pattern: learned updates without detach."""
EXPECTED = {"kind": "leak", "holder": ["image"], "growing": True}

import torch
from torch import nn

correct = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 3, 3, padding=1)).cuda()
scale = nn.Parameter(torch.tensor(0.05, device="cuda"))
optimizer = torch.optim.SGD([scale], lr=1e-3)
target = torch.rand(1, 3, 48, 48, device="cuda")
image = torch.rand(1, 3, 48, 48, device="cuda")
for iteration in range(60):
    with torch.no_grad():
        direction = correct(image.detach() - target)
    image = image - scale.exp() * 0.01 * direction  # <- here
    loss = (image - target).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)  # <- here
    optimizer.step()
    if iteration % 20 == 0:
        print(iteration, loss.item())
