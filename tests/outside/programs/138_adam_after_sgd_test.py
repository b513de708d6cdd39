"""A recommender with large tables passes a smoke test with SGD; then it is trained with Adam, and the first optimizer step dies because two moments of the size of all the weights are made there, beside weights and gradients. Source: https://github.com/pytorch/pytorch/issues/9439 - the same network and batch fit with SGD and not with Adam, since Adam keeps more state for each parameter."""
EXPECTED = {
    "kind": "oom",
    "memory": "512MiB",
    "cause": ["optimizer_state", "optimizer"],
    "mentions": [["optimizer", "Adam", "moment", "state"]],
}

import torch
from torch import nn

USERS, ITEMS, DIM = 220_000, 60_000, 128


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.Embedding(USERS, DIM)
        self.item = nn.Embedding(ITEMS, DIM)
        self.mix = nn.Sequential(nn.Linear(DIM, 256), nn.ReLU(), nn.Linear(256, DIM))

    def forward(self, u, i):
        return (self.mix(self.user(u)) * self.item(i)).sum(-1)


def clicks(n=512):
    u = torch.randint(0, USERS, (n,), device="cuda")
    i = torch.randint(0, ITEMS, (n,), device="cuda")
    return u, i, (torch.rand(n, device="cuda") < 0.3).float()


def fit(model, optimizer, steps, name):
    for step in range(steps):
        u, i, y = clicks()
        loss = nn.functional.binary_cross_entropy_with_logits(model(u, i), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            print(name, step, loss.item())


model = TwoTower().cuda()
fit(model, torch.optim.SGD(model.parameters(), lr=0.1), 12, "smoke test")
fit(model, torch.optim.Adam(model.parameters(), lr=1e-3), 12, "training")
