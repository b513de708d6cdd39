"""A regression net returns [N, 1], the targets are [N]; the home-made quantile loss silently works on N x N errors, and with all rows in one batch they fill the card. Source: https://github.com/LAMDA-Tabular/TALENT/pull/92 - with (n, 1) against (n,) broadcasting makes (n, n) instead of element-wise errors; mended by checking and reshaping (same silent broadcast: https://github.com/pytorch/pytorch/issues/16045)."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations"],
            "mentions": [["broadcast", "shape", "squeeze", "16384", "n x n", "n, n", "reshape"]]}

# Arithmetic: 16384 rows x 64 columns = 4 MiB, the net is tiny. Errors: 16384 x 16384 x 4 bytes = 1024 MiB, kept by abs().
# below: 256 MiB of booleans, weight: 1024 MiB, err.abs(): 1024 MiB, the product: 1024 MiB.
# 1024 + 256 + 1024 + 1024 = 3328 MiB fit in 4096 - 430 = 3666 MiB, the product does not.
import torch
import torch.nn as nn


class QuantileLoss(nn.Module):
    def __init__(self, q):
        super().__init__()
        self.q = q

    def forward(self, pred, target):
        err = target - pred  # <- here
        below = err < 0
        weight = torch.where(below, 1.0 - self.q, self.q)  # <- here
        return (weight * err.abs()).mean()  # <- here


def mlp(n_features):
    return nn.Sequential(nn.Linear(n_features, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))


def main():
    device = torch.device("cuda")
    rows = torch.randn(16384, 64)
    price = rows @ torch.randn(64) + 0.1 * torch.randn(16384)
    rows, price = rows.to(device), price.to(device)

    model = mlp(64).to(device)
    loss_fn = QuantileLoss(q=0.9)
    optim = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(50):
        optim.zero_grad()
        loss = loss_fn(model(rows), price)
        loss.backward()
        optim.step()
        print("epoch", epoch, "pinball", float(loss))


if __name__ == "__main__":
    main()
