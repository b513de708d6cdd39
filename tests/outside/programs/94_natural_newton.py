"""A variational online-Newton optimizer: gradients are taken with create_graph for a curvature probe, and the running precision and momentum in the optimizer's state are averaged from them without detaching, so the state of today hangs on the graphs of all earlier steps. Source: https://github.com/emtiyaz/vadam/pull/2 - established that tensors in the VOGN optimizer had to be detached from the computation graph; without that memory usage increased linearly."""
EXPECTED = {"kind": "leak", "holder": ["precision", "momentum", "optimizer.state", "OnlineNewton"], "growing": True}

import torch
from torch import nn
from torch.optim import Optimizer


class OnlineNewton(Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), prior=1.0):
        super().__init__(params, dict(lr=lr, betas=betas, prior=prior))

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        for group in self.param_groups:
            params = group["params"]
            b1, b2 = group["betas"]
            grads = torch.autograd.grad(loss, params, create_graph=True)
            probes = [torch.randint_like(p, 2) * 2 - 1 for p in params]
            curved = torch.autograd.grad(grads, params, grad_outputs=probes, retain_graph=True)
            for p, g, z, hz in zip(params, grads, probes, curved):
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                    state["precision"] = torch.ones_like(p)
                diag = (z * hz).abs()
                state["momentum"] = b1 * state["momentum"] + (1 - b1) * g  # <- here
                state["precision"] = b2 * state["precision"] + (1 - b2) * (diag + g * g)  # <- here
                with torch.no_grad():
                    p.addcdiv_(state["momentum"], state["precision"] + group["prior"], value=-group["lr"])
        return loss.detach()


class Regressor(nn.Sequential):
    def __init__(self, d=384):
        super().__init__(nn.Linear(64, d), nn.Tanh(), nn.Linear(d, d), nn.Tanh(), nn.Linear(d, 1))


def main():
    torch.manual_seed(5)
    model = Regressor().to("cuda")
    optimizer = OnlineNewton(model.parameters())

    for step in range(90):
        x = torch.randn(400, 64, device="cuda")
        y = torch.randn(400, 1, device="cuda")

        def closure():
            return (model(x) - y).pow(2).mean()

        loss = optimizer.step(closure)
        if step % 30 == 29:
            print("step", step + 1, "loss", float(loss))


if __name__ == "__main__":
    main()
