"""A depth estimator with a home-made memory report: at each step the report gives every tensor in sight a name, and remembers the names in a mapping from the tensor itself to its name that is only ever added to. Source: https://github.com/Stonesjtu/pytorch_memlab/issues/17 - established that the reporter's tensor_name mapping holds references to the tensors and so prevents unused ones from being collected."""
EXPECTED = {"kind": "leak", "holder": ["tensor_name", "MemReport", "report"], "growing": True}

import torch
from torch import nn
from torch.nn import functional as F


class MemReport:
    def __init__(self, model):
        self.tensor_name = {}
        self.device_total = {}
        for name, p in model.named_parameters():
            self.tensor_name[p] = name

    def collect(self, scope):
        self.device_total.clear()
        for name, obj in scope.items():
            if not torch.is_tensor(obj):
                continue
            if obj not in self.tensor_name:
                self.tensor_name[obj] = name  # <- here
            size = obj.numel() * obj.element_size()
            self.device_total[obj.device] = self.device_total.get(obj.device, 0) + size

    def line(self):
        return ", ".join(f"{d}: {n / 2**20:.1f} MiB in named tensors" for d, n in self.device_total.items())


class DepthNet(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, c, 3, 2, 1), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.ReLU(), nn.Conv2d(2 * c, 4 * c, 3, 1, 1), nn.ReLU()
        )
        self.dec = nn.Conv2d(4 * c, 16, 3, 1, 1)

    def forward(self, x):
        return F.pixel_shuffle(self.dec(self.enc(x)), 4)


def train_step(model, opt, report, step):
    image = torch.randn(4, 3, 96, 160, device="cuda")  # <- here
    truth = torch.randn(4, 1, 96, 160, device="cuda")  # <- here
    depth = model(image)  # <- here
    error = depth - truth  # <- here
    loss = error.abs().mean() + 0.1 * (error[..., 1:] - error[..., :-1]).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    report.collect(locals())
    if step % 25 == 0:
        print(step, report.line())
    return loss.item()


def run():
    torch.manual_seed(8)
    model = DepthNet().cuda()
    opt = torch.optim.Adam(model.parameters())
    report = MemReport(model)
    history = [train_step(model, opt, report, s) for s in range(1, 101)]
    print("last losses", history[-3:])


run()
