"""The hidden state of a small recurrent controller is carried on without detach, and the error that follows was silenced with retain_graph=True: every step keeps the graph of all before it. Pattern: the best known forum question about recurrent networks."""
EXPECTED = {"kind": "leak", "holder": ["hidden"], "growing": True}

import torch
from torch import nn


class Controller(nn.Module):
    def __init__(self, inputs=48, size=256):
        super().__init__()
        self.cell = nn.GRUCell(inputs, size)
        self.head = nn.Linear(size, 4)

    def forward(self, x, hidden):
        hidden = self.cell(x, hidden)
        return self.head(hidden), hidden


net = Controller().cuda()
hidden = torch.zeros(64, 256, device="cuda")
for t in range(48):
    x = torch.randn(64, 48, device="cuda")
    action, hidden = net(x, hidden)  # <- here
    loss = action.square().mean()
    net.zero_grad()
    loss.backward(retain_graph=True)  # <- here
    with torch.no_grad():
        for p in net.parameters():
            p.data = p.data - 1e-3 * p.grad
