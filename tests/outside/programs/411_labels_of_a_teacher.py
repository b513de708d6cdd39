"""A teacher labels all images first. They stay on the device under their number, as the student, which is made afterwards, trains with them for three epochs. Pattern: self-training."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


def network(width):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, width), nn.ReLU(), nn.Linear(width, 10)).cuda()


teacher = network(512).eval()
labelled = {}
with torch.no_grad():
    for number in range(80):
        images = torch.randn(32, 3, 16, 16, device="cuda")
        labelled[number] = (images, teacher(images).softmax(-1))
del teacher

student = network(128)
opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
for epoch in range(3):
    for number in torch.randperm(len(labelled)).tolist():
        images, target = labelled[number]
        loss = nn.functional.cross_entropy(student(images), target)
        opt.zero_grad()
        loss.backward()
        opt.step()
