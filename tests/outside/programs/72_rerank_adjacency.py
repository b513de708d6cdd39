"""Person retrieval: training is light, but the re-ranking at the test builds square matrices over all query and gallery images on the GPU, and the second of them does not fit. Source: https://github.com/Xuanmeng-Zhang/gnn-re-ranking/issues/2 - the re-ranker needs an N x N matrix over all 93,820 test images, 32.79 GiB in float32; half precision halves it."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["evaluation", "one_allocation", "activations"],
            "mentions": [["chunk", "adjacency", "matrix", "n x n", "cpu", "sparse", "gallery", "quadratic", "half", "batch", "28000"]]}

# Arithmetic: 28,000 test images x 256 x 4 bytes = 27 MiB of features. Similarities: 28,000^2 x 4 = 2991 MiB, fit in
# 6144 - 430 = 5714 MiB. The adjacency matrix is 2991 MiB more = 5982 MiB: dies in zeros().
import torch
import torch.nn as nn
import torch.nn.functional as F


class Embedder(nn.Module):
    def __init__(self, dim=256, people=751):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=4, padding=2), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.Conv2d(32, dim, 3, stride=4, padding=1), nn.BatchNorm2d(dim), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(dim, people)

    def forward(self, images):
        f = self.features(images).mean((2, 3))
        return self.classifier(f) if self.training else F.normalize(f, dim=1)


def rerank(features, k1=26):
    similarity = features @ features.t()  # <- here
    rank = similarity.topk(k1, dim=1).indices
    adjacency = torch.zeros(len(features), len(features), device=features.device)  # <- here
    adjacency.scatter_(1, rank, 1.0)
    adjacency = (adjacency + adjacency.t()) / 2
    return F.normalize(adjacency @ features, dim=1)


def test(model, count=28_000, batch=2000):
    model.eval()
    found = []
    with torch.no_grad():
        for _ in range(0, count, batch):
            found.append(model(torch.empty(batch, 3, 64, 32, device="cuda").uniform_()))
        return rerank(torch.cat(found))


def main():
    model = Embedder().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=3.5e-4)
    for epoch in range(3):
        model.train()
        for it in range(15):
            images = torch.randn(32, 3, 256, 128, device="cuda")
            people = torch.randint(0, 751, (32,), device="cuda")
            loss = F.cross_entropy(model(images), people, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print("epoch", epoch, loss.item())
    print(test(model).shape)


main()
