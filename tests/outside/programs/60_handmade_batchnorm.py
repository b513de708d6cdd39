"""A convolutional classifier with a batch norm written by hand: the running statistics are replaced in forward by an expression of the batch statistics that still carries its graph, so each step's layer input hangs on the running variance. Source: https://github.com/pytorch/pytorch/issues/20275 - the answer established that the update of the running statistics keeps extending the graph; detaching or no_grad cures it."""
EXPECTED = {"kind": "leak", "holder": ["running_var", "HandmadeBatchNorm2d"], "growing": True}

import torch
import torch.nn as nn


class HandmadeBatchNorm2d(nn.Module):
    def __init__(self, channels, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x):
        dims = (0, 2, 3)
        if self.training:
            mean = x.mean(dims)
            var = x.var(dims, unbiased=False)
            # Bessel-corrected estimate for evaluation, as in the real layer
            spread = x.var(dims, unbiased=True)  # <- here
            m = self.momentum
            self.running_mean = (1 - m) * self.running_mean + m * mean
            self.running_var = (1 - m) * self.running_var + m * spread  # <- here
        else:
            mean, var = self.running_mean, self.running_var
        shape = (1, -1, 1, 1)
        z = (x - mean.view(shape)) / torch.sqrt(var.view(shape) + self.eps)
        return z * self.weight.view(shape) + self.bias.view(shape)


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), HandmadeBatchNorm2d(cout), nn.ReLU())


class SmallConvNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.features = nn.Sequential(
            block(3, 24), nn.MaxPool2d(2),
            block(24, 48), nn.MaxPool2d(2),
            block(48, 96), nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(96 * 16, 1024), nn.ReLU(), nn.Linear(1024, classes))

    def forward(self, x):
        return self.head(self.features(x))


net = SmallConvNet().cuda().train()
sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
criterion = nn.CrossEntropyLoss()

for epoch in range(4):
    tot = 0.0
    for i in range(22):
        images = torch.randn(32, 3, 32, 32, device="cuda")
        labels = torch.randint(0, 10, (32,)).cuda()
        sgd.zero_grad()
        loss = criterion(net(images), labels)
        loss.backward()
        sgd.step()
        tot += loss.item()
    print("epoch %d, mean loss %.4f" % (epoch + 1, tot / 22))
