"""A CNN is trained while a saliency recorder (forward hook plus tensor hook on a target layer) stays registered; the recorder appends every activation and gradient to its lists and nobody ever empties them. Source: https://github.com/jacobgil/pytorch-grad-cam/issues/71 - the thread established that activations and gradients accumulate in device memory in the recorder's lists."""
EXPECTED = {"kind": "leak", "holder": ["activations", "gradients"], "growing": True}

import torch
import torch.nn as nn
import torch.nn.functional as F


class ActivationRecorder:
    def __init__(self, layer):
        self.activations = []
        self.gradients = []
        self.handle = layer.register_forward_hook(self.remember)

    def remember(self, module, inputs, output):
        self.activations.append(output)  # <- here
        if output.requires_grad:
            output.register_hook(self.remember_grad)

    def remember_grad(self, grad):
        self.gradients.append(grad)  # <- here

    def latest_cam(self):
        act, grad = self.activations[-1].detach(), self.gradients[-1]
        weights = grad.mean(dim=(2, 3), keepdim=True)
        return torch.relu((weights * act).sum(1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.body = nn.Conv2d(32, 32, 3, padding=1)
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.body(x))
        return self.fc(x.mean(dim=(2, 3)))


def main():
    net = Net().cuda()
    recorder = ActivationRecorder(net.body)
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    mean_cam = 0.0
    for step in range(60):
        x = torch.randn(16, 3, 32, 32, device="cuda")
        y = torch.zeros(16, dtype=torch.long, device="cuda")
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        mean_cam += recorder.latest_cam().mean().item()
    print("mean saliency", mean_cam / 60)


main()
