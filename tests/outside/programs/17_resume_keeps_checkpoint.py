"""Resuming a classifier from a checkpoint that is loaded straight onto the GPU: the dictionary stays in a module-level variable for the rest of the run, so a second copy of the weights is held all the time (not growing). Source: https://github.com/cavalleria/cavaface/issues/4 - the reporter found that memory of the resumed model was never freed, and that del(checkpoint) solved it."""
EXPECTED = {"kind": "leak", "holder": ["checkpoint"], "growing": False}

import os
import tempfile

import torch
import torch.nn as nn


def build():
    return nn.Sequential(
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 1024), nn.ReLU(),
        nn.Linear(1024, 100),
    )


def write_earlier_run(path):
    # the "earlier run" happens on the CPU, only to have a file to resume from
    net = build()
    torch.save({"epoch": 3, "backbone": net.state_dict()}, path)


folder = tempfile.mkdtemp()
resume_path = os.path.join(folder, "last.pt")
write_earlier_run(resume_path)

model = build().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

checkpoint = torch.load(resume_path, map_location="cuda")  # <- here
model.load_state_dict(checkpoint["backbone"])
start_epoch = checkpoint["epoch"]
os.remove(resume_path)
os.rmdir(folder)

ce = nn.CrossEntropyLoss()
for epoch in range(start_epoch, start_epoch + 3):
    seen = 0.0
    for it in range(20):
        images = torch.randn(128, 1024, device="cuda")
        labels = torch.zeros(128, dtype=torch.long, device="cuda")
        optimizer.zero_grad()
        loss = ce(model(images), labels)
        loss.backward()
        optimizer.step()
        seen += loss.item()
    print("epoch", epoch, seen / 20)
