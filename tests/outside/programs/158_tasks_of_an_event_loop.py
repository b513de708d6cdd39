"""A training inside an asyncio program starts a task per step that reports the logits; all finished tasks stay in a set. Pattern: the documented advice to keep references to tasks, without the discard."""
EXPECTED = {"kind": "leak", "holder": ["background", "tasks"], "growing": True}

import asyncio

import torch
from torch import nn

background = set()


async def report(step, logits):
    await asyncio.sleep(0)
    return step, logits.softmax(-1)


async def train():
    model = nn.Sequential(nn.Linear(80, 256), nn.ReLU(), nn.Linear(256, 100)).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        x = torch.randn(256, 80, device="cuda")
        logits = model(x)
        loss = logits.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        task = asyncio.create_task(report(step, logits.detach()))
        background.add(task)  # <- here
        await asyncio.sleep(0)


asyncio.run(train())
