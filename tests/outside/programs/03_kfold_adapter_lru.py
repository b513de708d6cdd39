"""K-fold fine-tuning of small adapters on a frozen trunk; after every fold GPU memory starts higher than before, because a helper decorated with functools.lru_cache receives the model as its argument and so keeps each fold's whole model alive. Source: https://github.com/meta-pytorch/torchtune/issues/904 - the thread names the lru_cache decorator of get_adapter_params, whose keys and values keep the old model, as the cause."""
EXPECTED = {"kind": "leak", "holder": ["lru_cache", "get_adapter_params", "adapter_params", "cache", "AdapterNet"], "growing": True}

import functools

import torch
from torch import nn

DEV = torch.device("cuda")
FOLDS, STEPS = 6, 12


class Block(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.base = nn.Linear(width, width, device=DEV)
        self.down = nn.Linear(width, rank, bias=False, device=DEV)
        self.up = nn.Linear(rank, width, bias=False, device=DEV)
        for p in self.base.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        return torch.relu(self.base(x) + self.up(self.down(x)))


class AdapterNet(nn.Module):
    def __init__(self, width=1024, rank=8, depth=4):
        super().__init__()
        self.blocks = nn.Sequential(*[Block(width, rank) for _ in range(depth)])
        self.out = nn.Linear(width, 10, device=DEV)

    def forward(self, x):
        return self.out(self.blocks(x))


@functools.lru_cache()  # <- here
def get_adapter_params(model):
    wanted = {}
    for name, p in model.named_parameters():
        if ".down." in name or ".up." in name or name.startswith("out."):
            wanted[name] = p
    return wanted


def run_fold(k):
    model = AdapterNet()
    params = list(get_adapter_params(model).values())  # <- here
    opt = torch.optim.SGD(params, lr=1e-2)
    total = 0.0
    for _ in range(STEPS):
        x = torch.randn(64, 1024, device=DEV)
        y = torch.zeros(64, dtype=torch.long, device=DEV)
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    return total / STEPS


scores = []
for k in range(FOLDS):
    scores.append(run_fold(k))
    print("fold", k, "done", f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
