"""A model too big for ordinary Adam on this card trains all the same, since every parameter is updated in a hook during the backward pass and its gradient is dropped at once. Source: https://github.com/pytorch/tutorials/pull/2568 - the tutorial steps the optimizer in backward, so that neither all gradients nor the optimizer's intermediates exist at one time, and the peak falls."""
EXPECTED = {"kind": "innocent", "memory": "6G"}

# Arithmetic: 15 layers of 100 MiB = 1500 MiB of weights and 3000 MiB of Adam moments = 4500 MiB. One gradient at a
# time and one temporary of the step: 200 MiB more. Peak about 4.8 GiB of 5714 MiB.
# With all gradients (1500 MiB) it would be 6000 MiB and die; nothing is wrong here.
import torch
from torch import nn

WIDTH, DEPTH = 5120, 15


def build():
    layers = []
    for _ in range(DEPTH):
        layers.append(nn.Linear(WIDTH, WIDTH, bias=False, device="cuda"))
        layers.append(nn.SiLU())
    return nn.Sequential(*layers)


def attach(model, lr):
    per_param = {p: torch.optim.Adam([p], lr=lr, foreach=False) for p in model.parameters()}

    def update(p):
        per_param[p].step()
        per_param[p].zero_grad(set_to_none=True)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    return per_param


model = build()
optimizers = attach(model, 1e-4)
for step in range(30):
    x = torch.randn(8, WIDTH, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    if step % 5 == 0:
        print("step", step, loss.item(), "optimizers", len(optimizers))
