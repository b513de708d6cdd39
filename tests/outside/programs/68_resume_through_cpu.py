"""A run is resumed in the middle: the checkpoint with weights and moments is read into host memory and copied into the tensors that already live on the card, which has no room for a second set. Source: https://github.com/ai2cm/ace/pull/1042 - the checkpoint is loaded with map_location cpu and dropped afterwards, so that two copies of the weights never meet on the GPU."""
EXPECTED = {"kind": "innocent", "memory": "2G"}

# Arithmetic: 12 layers of 2560 x 2560 floats = 12 x 25 MiB = 300 MiB of weights, 300 of gradients, 600 of moments = 1200 MiB
# of 2048 - 430 = 1618 MiB. The checkpoint (900 MiB) goes to the host; on the card it would make 2100 MiB.
import os
import tempfile

import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self, width=2560, depth=12):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


class Run:
    def __init__(self):
        with torch.device("cuda"):
            self.model = Stack()
        self.optim = torch.optim.Adam(self.model.parameters(), lr=1e-4, foreach=False)
        self.step = 0

    def train(self, until):
        while self.step < until:
            x = torch.randn(16, 2560, device="cuda")
            loss = (self.model(x) - x.roll(1, 0)).square().mean()
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
            self.step += 1
        print("step", self.step, loss.item())

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "optim": self.optim.state_dict(), "step": self.step}, path)

    def load(self, path):
        checkpoint = torch.load(path, map_location="cpu", mmap=True)
        self.model.load_state_dict(checkpoint["model"])
        self.optim.zero_grad(set_to_none=True)
        live = self.optim.state_dict()["state"]
        for key, moments in checkpoint["optim"]["state"].items():
            for name, value in moments.items():
                live[key][name].copy_(value)
        self.step = checkpoint["step"]
        del checkpoint


with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "last.pt")
    run = Run()
    run.train(10)
    run.save(path)
    run.train(15)
    run.load(path)  # the loss went astray: back to step 10
    run.train(30)
