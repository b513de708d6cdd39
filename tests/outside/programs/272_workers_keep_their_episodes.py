"""Two threads train one shared policy, as A3C does; each has a list of its moves, and the line that clears it after an update is missing. 24 KiB with a graph for each update of a thread. Pattern: asynchronous agents."""
EXPECTED = {"kind": "leak", "holder": ["moves"], "growing": True}

import threading

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 6)).cuda()
opt = torch.optim.Adam(policy.parameters())
lock = threading.Lock()


def worker(updates):
    moves = []
    for _ in range(updates):
        with lock:
            for _ in range(4):
                scores = policy(torch.randn(256, 16, device="cuda"))
                moves.append(scores.log_softmax(-1))  # <- here
            loss = -torch.stack(moves[-4:]).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()


threads = [threading.Thread(target=worker, args=(60,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
