"""Weights come from a file that was read onto the device; the dict is deleted after the training only. Without it the training fits. Pattern: del state_dict, too late."""
EXPECTED = {"kind": "oom", "memory": "3980M", "cause": ["leak"], "holder": ["state"], "growing": False,
            "mentions": [["state"]]}

# W = 10 x 64 MiB = 640 MiB. Second step: weights, copy, two moments 4 W = 2560 MiB, and 940 MiB of activations: too much for
# 3454 MiB. Without the copy it is 1920 + 940, and gradients take the place of activations.
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4096, depth=10):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def read(path, device):
    return {f"layers.{n}.weight": torch.zeros(4096, 4096, device=device) for n in range(10)}


def main(device="cuda"):
    net = Net().to(device)
    state = read("pretrained.pt", device)  # <- here
    missing, unexpected = net.load_state_dict(state, strict=False)
    print("missing", missing, "unexpected", unexpected)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, foreach=False)
    for step in range(20):
        x = torch.randn(3000, 4096, device=device)
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    del state


main()
