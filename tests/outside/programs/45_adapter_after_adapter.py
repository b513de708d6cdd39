"""Trying many low-rank adapters on one frozen base model: every candidate is added under a new name, trained for a while and scored; nothing removes it from the layers afterwards. Source: https://github.com/huggingface/peft/issues/738 - established that adapters loaded one after another are never garbage collected and need an explicit delete_adapter."""
EXPECTED = {"kind": "leak", "holder": ["adapters", "LowRank"], "growing": True}

import torch
from torch import nn


class LowRank(nn.Module):
    def __init__(self, d_in, d_out, rank):
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, d_in, device="cuda") * 0.01)  # <- here
        self.up = nn.Parameter(torch.zeros(d_out, rank, device="cuda"))  # <- here

    def forward(self, x):
        return (x @ self.down.t()) @ self.up.t()


class AdaptedLinear(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.adapters = nn.ModuleDict()
        self.active = None

    def load_adapter(self, name, rank):
        self.adapters[name] = LowRank(self.base.in_features, self.base.out_features, rank)  # <- here

    def forward(self, x):
        y = self.base(x)
        return y if self.active is None else y + self.adapters[self.active](x)


class Ranker(nn.Module):
    def __init__(self, d=1536, depth=5):
        super().__init__()
        self.body = nn.ModuleList(AdaptedLinear(nn.Linear(d, d)) for _ in range(depth))
        self.score = nn.Linear(d, 1).requires_grad_(False)

    def forward(self, x):
        for layer in self.body:
            x = x + torch.relu(layer(x))
        return self.score(x).squeeze(-1)

    def load_adapter(self, name, rank):
        for layer in self.body:
            layer.load_adapter(name, rank)

    def set_adapter(self, name):
        for layer in self.body:
            layer.active = name

    def adapter_parameters(self, name):
        return [p for layer in self.body for p in layer.adapters[name].parameters()]


def fit_adapter(model, name, steps=12):
    model.set_adapter(name)
    optimizer = torch.optim.Adam(model.adapter_parameters(name), lr=5e-4)
    for _ in range(steps):
        x = torch.randn(48, 1536, device="cuda")
        better, worse = model(x), model(torch.randn_like(x))
        loss = -torch.nn.functional.logsigmoid(better - worse).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    model = Ranker().cuda()
    board = []
    for i, rank in enumerate([64, 48, 96, 64, 80, 96, 48, 64, 96]):
        name = f"candidate_{i}"
        model.load_adapter(name, rank)
        board.append((fit_adapter(model, name), name))
    print(sorted(board)[:3])
