"""A thread is started every second step to upload the newest features, and waits for a signal that is given at the end of the training only. 64 KiB every second step. Pattern: background writers that never finish."""
EXPECTED = {"kind": "leak", "holder": ["features", "upload", "Thread", "_args"], "growing": True}

import threading

import torch
from torch import nn

finished = threading.Event()


def upload(features):
    finished.wait()
    return features.mean().item()


body, head = nn.Linear(128, 256).cuda(), nn.Linear(256, 4).cuda()
opt = torch.optim.AdamW([*body.parameters(), *head.parameters()])
for step in range(100):
    x = torch.randn(64, 128, device="cuda")
    features = torch.relu(body(x))
    loss = nn.functional.cross_entropy(head(features), torch.randint(0, 4, (64,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 2 == 0:
        threading.Thread(target=upload, args=(features.detach(),), daemon=True).start()  # <- here
finished.set()
