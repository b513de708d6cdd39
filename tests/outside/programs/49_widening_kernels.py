"""A continuous-kernel convolution whose kernel is widened on a schedule during training: memory grows with the kernel until the widest one is reached. Source: https://github.com/david-knigge/ccnn/issues/11 - the author established that the rise comes from the growing kernel size over the training process."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn
import torch.nn.functional as F


class ContinuousConv1d(nn.Module):
    """The kernel is the output of a small network over positions."""

    def __init__(self, cin, cout, size):
        super().__init__()
        self.cin, self.cout, self.size = cin, cout, size
        self.net = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, cin * cout))

    def kernel(self):
        where = torch.linspace(-1, 1, self.size, device=self.net[0].weight.device).unsqueeze(1)
        k = self.net(where) / (self.size * self.cin) ** 0.5
        return k.t().reshape(self.cout, self.cin, self.size)

    def forward(self, x):
        return F.conv1d(x, self.kernel(), padding=self.size // 2)


class SequenceNet(nn.Module):
    def __init__(self, width=160, size=5):
        super().__init__()
        self.inp = nn.Conv1d(3, width, 1)
        self.convs = nn.ModuleList(ContinuousConv1d(width, width, size) for _ in range(3))
        self.out = nn.Linear(width, 6)

    def widen(self, size):
        for c in self.convs:
            c.size = size

    def forward(self, x):
        h = self.inp(x)
        for c in self.convs:
            h = h + torch.tanh(c(h))
        return self.out(h.mean(-1))


def kernel_size(step, start=5, stop=101, per=6):
    grown = start + 8 * (step // per)
    return min(stop, grown)


def main(steps=110):
    model = SequenceNet().cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        model.widen(kernel_size(step))
        signal = torch.randn(16, 3, 128, device="cuda")
        label = torch.randint(0, 6, (16,)).cuda()
        loss = F.cross_entropy(model(signal), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 36 == 35:
            print(f"step {step + 1}, kernel {model.convs[0].size}, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
