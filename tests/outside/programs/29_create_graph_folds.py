"""A curvature-aware optimiser is tried in several folds, each with a new network; gradients are made with loss.backward(create_graph=True) and left in .grad at the end of a fold, so every finished network lives on in a cycle parameter -> .grad -> graph -> parameter that no garbage collection breaks. Source: https://github.com/pytorch/pytorch/issues/4661 (same cause as /issues/7343) - the maintainers established the reference cycle between the parameter and its gradient and later added a warning."""
EXPECTED = {"kind": "leak", "holder": ["grad", "net", "Net", "Parameter", "weight", "create_graph"], "growing": True}

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")


class TanhNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(784, 1024)
        self.b = nn.Linear(1024, 1024)
        self.c = nn.Linear(1024, 16)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


def one_step(net, params, lr_scale):
    x = torch.randn(256, 784, device="cuda")
    y = torch.randn(256, 16, device="cuda")
    loss = (net(x) - y).pow(2).mean()
    loss.backward(create_graph=True)  # <- here
    probes = [torch.randn_like(p) for p in params]
    hv = torch.autograd.grad([p.grad for p in params], params, grad_outputs=probes, retain_graph=True)
    with torch.no_grad():
        for p, h, z in zip(params, hv, probes):
            p.sub_(lr_scale * p.grad / ((h * z).abs() + 1.0))
    return loss.item()


def run_fold(fold):
    net = TanhNet().cuda()
    params = list(net.parameters())
    opt = torch.optim.SGD(params, lr=1e-3)
    last = None
    for _ in range(12):
        opt.zero_grad(set_to_none=True)
        last = one_step(net, params, 1e-3)
        opt.step()
    return last


for fold in range(6):
    print("fold", fold, run_fold(fold), f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
