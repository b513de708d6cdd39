"""A campaign injects faults into a trained network, and each trial builds a new injector which puts a forward hook on every linear layer; the handles are thrown away and no hook is ever removed, so the network keeps the closures of all earlier trials together with their masks. Source: https://github.com/fffasttime/MRFI/pull/5 - the handles which register_forward_hook returned were discarded, and so every new injector left its closures on the model."""
EXPECTED = {
    "kind": "leak",
    "holder": ["_forward_hooks", "corrupt", "mask", "net", "register_forward_hook"],
    "growing": True,
}

import random

import torch
import torch.nn as nn


class BitFlips:
    """Simulates stuck activations in every linear layer of a network."""

    def __init__(self, network, rate, seed):
        gen = torch.Generator(device="cpu").manual_seed(seed)
        self.layers = [m for m in network.modules() if isinstance(m, nn.Linear)]
        for layer in self.layers:
            self.attach(layer, rate, gen)

    def attach(self, layer, rate, gen):
        mask = (torch.rand(128, layer.out_features, generator=gen) > rate).float().cuda()  # <- here

        def corrupt(module, args, out):
            return out * mask[: len(out)]

        layer.register_forward_hook(corrupt)  # <- here


def accuracy(network, x, y):
    with torch.no_grad():
        return (network(x).argmax(-1) == y).float().mean().item()


def main():
    rng = random.Random(2)
    net = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    ).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(10):
        x = torch.randn(128, 256, device="cuda")
        y = x[:, :10].argmax(-1)
        loss = nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()

    table = []
    for trial in range(72):
        rate = rng.choice([0.001, 0.01, 0.05])
        BitFlips(net, rate, trial)
        x = torch.randn(128, 256, device="cuda")
        table.append((rate, accuracy(net, x, x[:, :10].argmax(-1))))
        if trial % 12 == 11:
            print(f"trial {trial + 1}: mean accuracy {sum(a for _, a in table) / len(table):.3f}")


main()
