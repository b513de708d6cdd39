"""A second output is never trained. Its autograd node is kept in each step, to draw the graph at the end; a node keeps all that was saved below it. Pattern: grad_fn kept for a drawing."""
EXPECTED = {"kind": "leak", "holder": ["roots"], "growing": True}

import torch
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.main, self.side = nn.Linear(128, 10), nn.Sequential(nn.Linear(128, 64), nn.Sigmoid())

    def forward(self, x):
        return (self.main(self.trunk(x)), self.side(self.trunk(x)))


model = TwoHeads().cuda()
opt = torch.optim.Adam(model.parameters())
roots = []
for step in range(80):
    main, side = model(torch.randn(128, 64, device="cuda"))
    loss = main.logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    roots.append((step, side.grad_fn))  # <- here
print(len(roots))
