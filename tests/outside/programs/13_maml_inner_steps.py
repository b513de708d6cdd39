"""Second-order MAML: within every meta-step memory climbs with each inner adaptation step, because the outer gradient goes through all of them, and it falls back after the meta-update. Source: https://github.com/tristandeleu/pytorch-maml/issues/21 - the author established that memory needed to back-propagate through the gradient updates scales linearly with the number of adaptation steps, which is expected."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn.functional as F
from torch.func import functional_call


class FewShotNet(torch.nn.Module):
    def __init__(self, n_in=256, width=512, ways=5):
        super().__init__()
        self.l1 = torch.nn.Linear(n_in, width)
        self.l2 = torch.nn.Linear(width, width)
        self.l3 = torch.nn.Linear(width, ways)

    def forward(self, x):
        return self.l3(torch.tanh(self.l2(torch.tanh(self.l1(x)))))


def adapt(model, x, y, inner_lr, n_steps):
    fast = dict(model.named_parameters())
    for _ in range(n_steps):
        inner = F.cross_entropy(functional_call(model, fast, (x,)), y)
        grads = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
        fast = {k: v - inner_lr * g for (k, v), g in zip(fast.items(), grads)}
    return fast


def task():
    x = torch.randn(50, 256, device="cuda")
    y = torch.zeros(50, dtype=torch.long, device="cuda")
    return x[:25], y[:25], x[25:], y[25:]


def meta_train(meta_steps=50, tasks_per_step=2, inner_steps=5):
    model = FewShotNet().cuda()
    meta_opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    curve = []
    for step in range(meta_steps):
        meta_opt.zero_grad()
        outer_value = 0.0
        for _ in range(tasks_per_step):
            xs, ys, xq, yq = task()
            fast = adapt(model, xs, ys, 0.01, inner_steps)
            outer = F.cross_entropy(functional_call(model, fast, (xq,)), yq) / tasks_per_step
            outer.backward()
            outer_value += outer.item()
        meta_opt.step()
        curve.append(outer_value)
    return curve


print(meta_train()[-1])
