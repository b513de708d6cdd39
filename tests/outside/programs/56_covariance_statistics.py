"""A growing network collects second-moment statistics of its layer inputs during training in order to choose the next neurons; the statistic is summed from activations that still require grad, so the graph of each sum (and the activation in it) is retained. Source: https://github.com/growingnet/gromo/issues/137 - established that the tensor updates have requires_grad and the additions are kept in the graph."""
EXPECTED = {"kind": "leak", "holder": ["moment_sum", "SecondMoment", "moment_in"], "growing": True}

import torch
import torch.nn as nn


class SecondMoment:
    """Sum over all samples of x x^T, and the number of samples."""

    def __init__(self, features, device):
        self.moment_sum = torch.zeros(features, features, device=device)
        self.samples = 0

    def update(self, x):
        self.moment_sum = self.moment_sum + x.t() @ x  # <- here
        self.samples += x.shape[0]

    def value(self):
        return self.moment_sum / max(self.samples, 1)


class GrowingLinear(nn.Module):
    def __init__(self, n_in, n_out, collect=True):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.collect = collect
        self.moment_in = SecondMoment(n_in, "cuda")

    def forward(self, x):
        if self.training and self.collect:
            self.moment_in.update(x)  # <- here
        return self.linear(x)

    def widest_directions(self, k):
        moment = self.moment_in.value().detach()
        return torch.topk(moment.diagonal(), k).indices


class GrowingNet(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.stem = nn.Linear(128, sizes[0])
        self.layers = nn.ModuleList(GrowingLinear(a, b) for a, b in zip(sizes[:-1], sizes[1:]))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(torch.nn.functional.selu(x))
        return x


def train(net, steps, batch=384):
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    for step in range(steps):
        inputs = torch.randn(batch, 128, device="cuda")
        wanted = torch.randn(batch, 16, device="cuda")
        loss = ((net(inputs) - wanted) ** 2).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if (step + 1) % 25 == 0:
            print("step", step + 1, "loss", loss.item())


net = GrowingNet([448, 448, 320, 16]).to("cuda")
net.train()
train(net, 75)
for i, layer in enumerate(net.layers):
    print("layer", i, "would grow along", layer.widest_directions(2).shape[0], "directions")
