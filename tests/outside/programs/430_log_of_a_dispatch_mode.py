"""A dispatch mode writes down each operation with its arguments, to find where a value becomes infinite. It stays active for the whole training, and its list is never emptied. Pattern: debugging by TorchDispatchMode."""
EXPECTED = {"kind": "leak", "holder": ["calls", "Journal", "journal"], "growing": True}

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Journal(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, result))  # <- here
        return result


model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 16)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
with Journal() as journal:
    for step in range(60):
        x = torch.randn(128, 64, device="cuda")
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
print(len(journal.calls) > 0)
