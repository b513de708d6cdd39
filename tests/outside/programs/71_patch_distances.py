"""Anomaly detection: after a few epochs of adapting the backbone, the patches of a test image are compared with the memory bank by expanding both to [patches, bank, features]; the difference fits, its power does not. Source: https://github.com/hcw-00/PatchCore_anomaly_detection/pull/30 - the expanded difference and its pow() each reserve the full n x m x d block; torch.cdist needs far less (symptom: issue 19 of the same repository)."""
EXPECTED = {"kind": "oom", "memory": "8G", "cause": ["activations", "one_allocation", "evaluation"],
            "mentions": [["cdist", "chunk", "expand", "broadcast", "distance", "pow", "blocks", "pieces", "batch"]]}

# Arithmetic: 784 patches x 1000 bank entries x 1536 features x 4 bytes = 4594 MiB for x - y, and as much again
# for its square: 9188 MiB > 8192 - 430 = 7762 MiB. The distances asked for are 784 x 1000 x 4 = 3 MiB.
import torch
import torch.nn as nn


def distance_matrix(x, y, p=2):
    n, m, d = x.size(0), y.size(0), x.size(1)
    x = x.unsqueeze(1).expand(n, m, d)
    y = y.unsqueeze(0).expand(n, m, d)
    return torch.pow(x - y, p).sum(2)  # <- here


class Backbone(nn.Module):
    def __init__(self, out=1536):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 8, stride=8), nn.BatchNorm2d(64), nn.ReLU())
        self.wide = nn.Conv2d(64, out, 1)

    def forward(self, image):
        return self.wide(self.stem(image))


class Detector:
    def __init__(self):
        self.net = Backbone().cuda()
        self.head = nn.Linear(1536, 15).cuda()
        self.bank = None

    def adapt(self, steps):
        params = list(self.net.parameters()) + list(self.head.parameters())
        opt = torch.optim.SGD(params, lr=0.01, momentum=0.9)
        for _ in range(steps):
            image = torch.randn(4, 3, 224, 224).cuda()
            label = torch.randint(0, 15, (4,)).cuda()
            loss = nn.functional.cross_entropy(self.head(self.net(image).mean((2, 3))), label)
            opt.zero_grad()
            loss.backward()
            opt.step()
        print("adapted", loss.item())

    @torch.no_grad()
    def fill_bank(self, images=20, keep=50):
        self.net.eval()
        kept = []
        for _ in range(images):
            patches = self.patches(torch.randn(1, 3, 224, 224).cuda())
            kept.append(patches[torch.randperm(len(patches))[:keep]])
        self.bank = torch.cat(kept)

    def patches(self, image):
        return self.net(image).flatten(2).transpose(1, 2).reshape(-1, 1536)

    @torch.no_grad()
    def score(self, image):
        distances = distance_matrix(self.patches(image), self.bank)
        return distances.topk(9, largest=False).values[:, 0].max().item()


detector = Detector()
detector.adapt(20)
detector.fill_bank()
print("bank", tuple(detector.bank.shape))
for i in range(10):
    print("test image", i, detector.score(torch.randn(1, 3, 224, 224).cuda()))
