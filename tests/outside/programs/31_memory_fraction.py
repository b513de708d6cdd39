"""Two jobs were meant to share one card, so the script caps itself to a quarter of it; the model needs more than that and dies although most of the card is free. Source: https://github.com/pytorch/pytorch/issues/111729 - albanD read from the message that there is memory available but PyTorch is not allowed to use it, because of the fraction set with set_per_process_memory_fraction."""
EXPECTED = {"kind": "oom", "memory": "8G", "cause": ["limit"],
            "mentions": [["set_per_process_memory_fraction", "memory_fraction", "fraction", "memory limit"]]}

# Arithmetic: the cap is 0.25 x 8192 = 2048 MiB. Weights: 12 x 100 MiB = 1200 MiB, fit. Backward
# adds 1200 MiB of gradients = 2400 MiB > 2048 MiB: dies in backward, with over 5 GiB of the card free.
import torch
from torch import nn

GPU_SHARE = 0.25


def setup():
    torch.cuda.set_per_process_memory_fraction(GPU_SHARE, 0)
    torch.manual_seed(0)


def build(width=5120, depth=12):
    mods = []
    for _ in range(depth):
        mods += [nn.Linear(width, width, bias=False, device="cuda"), nn.ELU()]
    return nn.Sequential(*mods)


def fit(net, steps=40):
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(4, 5120, device="cuda")
        loss = (net(x) - x).abs().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print("step", step, loss.item())


setup()
fit(build())
