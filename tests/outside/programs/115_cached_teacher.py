"""Distillation on a small fixed dataset: in the first epoch the teacher's logits are computed and kept on the GPU, one tensor for each batch; then the teacher is dropped and the next epochs read the cache. It has one entry for each batch and cannot grow beyond them. Source: https://github.com/airaria/TextBrewer/issues/27 - quotes is_caching_logits, which caches batches and teacher logits in memory, meant for small and medium datasets."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp(sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Distiller:
    def __init__(self, teacher, student, temperature=4.0, kd_weight=0.8):
        self.teacher = teacher.eval()
        self.student = student
        self.T, self.w = temperature, kd_weight
        self.cache = [None] * n_batches
        self.opt = torch.optim.Adam(student.parameters(), lr=1e-3)

    def soft_targets(self, i, x):
        if self.cache[i] is None:
            with torch.no_grad():
                self.cache[i] = self.teacher(x)
        return self.cache[i]

    def epoch(self, data):
        self.student.train()
        seen = 0.0
        for i, (x, y) in enumerate(data):
            t = self.soft_targets(i, x)
            s = self.student(x)
            kd = F.kl_div((s / self.T).log_softmax(-1), (t / self.T).softmax(-1), reduction="batchmean") * self.T ** 2
            loss = self.w * kd + (1 - self.w) * F.cross_entropy(s, y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            seen += loss.item()
        if self.teacher is not None:
            self.teacher = None          # all targets are there now
        return seen / len(data)


n_batches = 45
data = [
    (torch.randn(256, 300, device="cuda"), torch.randint(0, 2000, (256,), device="cuda")) for _ in range(n_batches)
]
d = Distiller(mlp([300, 1500, 1500, 2000]).cuda(), mlp([300, 256, 2000]).cuda())
for e in range(3):
    print(f"epoch {e}: {d.epoch(data):.4f}  cached {sum(c is not None for c in d.cache)}")
