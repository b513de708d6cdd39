"""Each step runs in a copy of the context, which has the step's features in a context variable; all contexts are kept in a list, to run a report in them. 48 KiB a step. Pattern: copy_context."""
EXPECTED = {"kind": "leak", "holder": ["contexts", "features"], "growing": True}

import contextvars

import torch
from torch import nn

features = contextvars.ContextVar("features")
contexts = []
encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 96)).cuda()
head = nn.Linear(96, 10).cuda()
opt = torch.optim.Adam([*encoder.parameters(), *head.parameters()])


def step():
    z = encoder(torch.randn(128, 64, device="cuda"))
    features.set(z.detach())  # <- here
    loss = head(z).logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()


for _ in range(80):
    context = contextvars.copy_context()
    context.run(step)
    contexts.append(context)  # <- here
