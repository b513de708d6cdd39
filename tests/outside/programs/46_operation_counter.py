"""Counting the operations of one training step: the counter notes each layer's last input as an attribute on the layer and takes its hooks away afterwards, but not the attributes, so the activations of the counted step stay for the whole run (not growing). Source: https://github.com/fangwei123456/spikingjelly/pull/676 - the review established that the last-input attribute is attached to user modules and never cleared, which pins activations after profiling."""
EXPECTED = {"kind": "leak", "holder": ["_last_input"], "growing": False}

import torch
from torch import nn


class OperationCounter:
    def __init__(self, model):
        self.model = model
        self.handles = []
        self.mult_adds = 0

    def __enter__(self):
        for layer in self.model.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                self.handles.append(layer.register_forward_hook(self.on_forward))
                self.handles.append(layer.register_full_backward_hook(self.on_backward))
        return self

    def __exit__(self, *exc):
        while self.handles:
            self.handles.pop().remove()
        return False

    def on_forward(self, layer, args, out):
        layer._last_input = args[0]  # <- here
        self.mult_adds += self.cost(layer, out)

    def on_backward(self, layer, grad_in, grad_out):
        seen = layer._last_input
        self.mult_adds += self.cost(layer, grad_out[0]) + seen.numel()

    @staticmethod
    def cost(layer, out):
        return out.numel() * layer.weight[0].numel()


class UNetish(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.a = nn.Conv2d(1, c, 3, padding=1)
        self.b = nn.Conv2d(c, 2 * c, 3, padding=1, stride=2)
        self.c = nn.Conv2d(2 * c, 2 * c, 3, padding=1)
        self.d = nn.Conv2d(2 * c, c, 3, padding=1)
        self.e = nn.Conv2d(2 * c, c, 3, padding=1)
        self.f = nn.Conv2d(c, 2, 1)

    def forward(self, x):
        a = torch.relu(self.a(x))
        h = torch.relu(self.c(torch.relu(self.b(a))))
        h = nn.functional.interpolate(torch.relu(self.d(h)), scale_factor=2)
        return self.f(torch.relu(self.e(torch.cat([a, h], 1))))


def step(net, opt, crit):
    scans = torch.randn(16, 1, 64, 64, device="cuda")
    masks = torch.randint(0, 2, (16, 64, 64)).cuda()
    opt.zero_grad()
    loss = crit(net(scans), masks)
    loss.backward()
    opt.step()
    return loss.item()


net = UNetish().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
crit = nn.CrossEntropyLoss()

step(net, opt, crit)
with OperationCounter(net) as counter:
    step(net, opt, crit)  # <- here
print("multiply-adds per step: %.2f G" % (counter.mult_adds / 1e9))

for i in range(70):
    value = step(net, opt, crit)
print("last loss", value)
