"""Action recognition with an evaluation every ten steps on a much larger batch: memory peaks at each evaluation and returns. Source: https://github.com/open-mmlab/mmskeleton/issues/94 - the answer established that the jump comes from the extra evaluation batch taken at every tenth epoch."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn


class JointMixing(nn.Module):
    def __init__(self, cin, cout, joints):
        super().__init__()
        self.adjacency = nn.Parameter(torch.eye(joints) + 0.01 * torch.randn(joints, joints))
        self.weight = nn.Linear(cin, cout)
        self.temporal = nn.Conv1d(cout, cout, 9, padding=4, groups=cout)

    def forward(self, x):  # batch, time, joints, channels
        x = torch.relu(self.weight(torch.einsum("btjc,jk->btkc", x, self.adjacency)))
        b, t, j, c = x.shape
        y = self.temporal(x.permute(0, 2, 3, 1).reshape(b * j, c, t))
        return x + y.view(b, j, c, t).permute(0, 3, 1, 2)


class SkeletonNet(nn.Module):
    def __init__(self, joints=18, classes=60):
        super().__init__()
        self.layers = nn.Sequential(
            JointMixing(3, 64, joints), JointMixing(64, 128, joints), JointMixing(128, 256, joints))
        self.classify = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, classes))

    def forward(self, x):
        return self.classify(self.layers(x).mean((1, 2)))


class Processor:
    def __init__(self):
        self.model = SkeletonNet().cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        self.loss = nn.CrossEntropyLoss()
        self.best = float("inf")

    def data(self, n):
        return torch.randn(n, 32, 18, 3, device="cuda"), torch.randint(0, 60, (n,)).cuda()

    def train_step(self):
        self.model.train()
        clips, labels = self.data(8)
        loss = self.loss(self.model(clips), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        clips, labels = self.data(64)
        value = self.loss(self.model(clips), labels).item()
        self.best = min(self.best, value)
        return value

    def start(self, steps):
        for i in range(1, steps + 1):
            self.train_step()
            if i % 10 == 0:
                print("step", i, "eval", self.evaluate(), "best", self.best)


Processor().start(80)
