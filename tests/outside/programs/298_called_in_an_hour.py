"""Inside an event loop each step asks for a report on its outputs in an hour; the training takes seconds. 48 KiB a step. Pattern: loop.call_later whose handle is never cancelled."""
EXPECTED = {"kind": "leak", "holder": ["_scheduled", "call_later", "report", "loop", "out"], "growing": True}

import asyncio

import torch
from torch import nn


def report(number, out):
    print(number, float(out.mean()))


async def main():
    loop = asyncio.get_running_loop()
    net = nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 96)).cuda()
    opt = torch.optim.Adam(net.parameters())
    for number in range(80):
        x = torch.randn(128, 96, device="cuda")
        out = net(x)
        loss = (out - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        loop.call_later(3600, report, number, out.detach())  # <- here
        await asyncio.sleep(0)


asyncio.run(main())
