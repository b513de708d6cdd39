"""Training uses a tenth of the card; every ten epochs an evaluation with a four times larger batch of larger clips runs without gradients, and what the allocator then holds stays high. Nothing leaks. Source: https://github.com/open-mmlab/mmskeleton/issues/94 - the GPU memory rose around epoch 10 and stayed; the author: an extra batch for evaluation is drawn every 10 epochs."""
EXPECTED = {"kind": "innocent", "memory": "3G"}

# Arithmetic: training: 16 clips x 64 channels x 150 frames x 25 joints x 4 bytes = 15 MiB per map, about 12 kept = 0.2 GiB.
# Evaluation: 64 clips x 600 frames = 234 MiB per map, 3 or 4 alive at a time = 0.9 GiB; the
# scores go to the CPU. Reserved memory jumps at epochs 10, 20, ... and never above about 1 GiB of 2642 MiB.
import torch
from torch import nn


class SkeletonBlock(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.spatial = nn.Conv2d(cin, cout, 1)
        self.temporal = nn.Conv2d(cout, cout, (9, 1), padding=(4, 0))
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return torch.relu(self.bn(self.temporal(self.spatial(x))))


class Recognizer(nn.Module):
    def __init__(self, classes=60):
        super().__init__()
        self.blocks = nn.Sequential(SkeletonBlock(3, 64), SkeletonBlock(64, 64), SkeletonBlock(64, 64))
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.blocks(x).mean((2, 3)))


def clips(n, frames):
    return torch.randn(n, 3, frames, 25), torch.randint(0, 60, (n,))


def train_epoch(model, opt):
    model.train()
    for _ in range(3):
        x, y = clips(16, 150)
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


@torch.inference_mode()
def evaluate(model):
    model.eval()
    scores = []
    for _ in range(3):
        x, _ = clips(64, 600)
        scores.append(model(x.cuda()).softmax(-1).cpu())
    return torch.cat(scores).max().item()


model = Recognizer().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for epoch in range(1, 31):
    value = train_epoch(model, opt)
    if epoch % 10 == 0:
        print("epoch", epoch, "loss", value, "top", evaluate(model))
