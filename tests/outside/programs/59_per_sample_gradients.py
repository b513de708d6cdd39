"""Private training with per-sample gradients: a forward hook pushes each layer's input on a list and the backward hook pops it; the validation passes run under no_grad but with the model left in train mode, so they push and nothing ever pops. Source: https://github.com/meta-pytorch/opacus/issues/176 - established that evaluation under no_grad in training mode leaves the stored activations behind; model.eval() cures it."""
EXPECTED = {"kind": "leak", "holder": ["activations"], "growing": True}

import torch
import torch.nn as nn
import torch.nn.functional as F


class PerSampleGrad:
    """Adds .grad_sample to the parameters of every linear layer."""

    def __init__(self, model):
        self.handles = []
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                layer.activations = []
                self.handles.append(layer.register_forward_hook(self.remember))
                self.handles.append(layer.register_full_backward_hook(self.contract))

    @staticmethod
    def remember(layer, args, output):
        if layer.training:
            layer.activations.append(args[0].detach())  # <- here

    @staticmethod
    def contract(layer, grad_in, grad_out):
        a, g = layer.activations.pop(), grad_out[0]
        layer.weight.grad_sample = torch.einsum("bo,bi->boi", g, a)
        layer.bias.grad_sample = g


def private_step(model, optimizer, batch_size, clip=1.0, sigma=0.8):
    with torch.no_grad():
        params = [p for p in model.parameters() if hasattr(p, "grad_sample")]
        norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in params]).norm(dim=0)
        scale = (clip / (norms + 1e-6)).clamp(max=1.0)
        for p in params:
            summed = torch.tensordot(scale, p.grad_sample, dims=([0], [0]))
            p.grad = (summed + sigma * clip * torch.randn_like(summed)) / batch_size
            del p.grad_sample
    optimizer.step()
    optimizer.zero_grad()


@torch.no_grad()
def validate(model, batches=3):
    total = 0.0
    for _ in range(batches):
        x = torch.randn(256, 512, device="cuda")  # <- here
        y = torch.randint(0, 20, (256,)).cuda()
        total += F.cross_entropy(model(x), y).item()  # <- here
    return total / batches


def main():
    model = nn.Sequential(
        nn.Linear(512, 512), nn.Tanh(),
        nn.Linear(512, 512), nn.Tanh(),
        nn.Linear(512, 512), nn.Tanh(),
        nn.Linear(512, 20),
    ).cuda()
    PerSampleGrad(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    B = 24
    for step in range(100):
        x = torch.randn(B, 512, device="cuda")
        y = torch.randint(0, 20, (B,)).cuda()
        F.cross_entropy(model(x), y).backward()
        private_step(model, optimizer, B)
        if step % 4 == 3:
            val = validate(model)
            if step % 20 == 19:
                print(f"{step + 1:4d} val {val:.4f}")


main()
