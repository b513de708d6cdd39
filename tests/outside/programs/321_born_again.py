"""Born-again networks: after each 25 steps the student becomes the teacher, and a new student with a new optimizer is made. One teacher and one student at any time. Pattern: self-distillation in generations."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


def new_network():
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).cuda()


teacher = None
for generation in range(5):
    student = new_network()
    opt = torch.optim.Adam(student.parameters())
    for step in range(25):
        x = torch.randn(128, 64, device="cuda")
        out = student(x)
        loss = (out - x).square().mean()
        if teacher is not None:
            with torch.no_grad():
                target = teacher(x)
            loss = loss + (out - target).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    teacher = student.requires_grad_(False)
