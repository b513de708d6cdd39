"""PCGrad: the gradients of four tasks are taken one by one into lists, projected on each other and written to the weights; times and numbers of all steps are kept, as floats and events. Right: only small objects of the host stay. Pattern: gradient surgery."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(4)
body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
heads = nn.ModuleList(nn.Linear(64, 4) for _ in range(4)).cuda()
opt = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=1e-3)
log, events = [], []
for step in range(100):
    start = torch.cuda.Event(enable_timing=True)
    start.record()
    events.append(start)
    features = body(torch.randn(128, 64, device="cuda"))
    shared = list(body.parameters())
    by_task = []
    for head in heads:
        loss = head(features).square().mean()
        of_head = torch.autograd.grad(loss, list(head.parameters()), retain_graph=True)
        for weight, gradient in zip(head.parameters(), of_head):
            weight.grad = gradient
        by_task.append(torch.cat([one.flatten() for one in torch.autograd.grad(loss, shared, retain_graph=True)]))
    projected = [one.clone() for one in by_task]
    for one in projected:
        for other in random.sample(by_task, len(by_task)):
            dot = torch.dot(one, other)
            one -= torch.clamp(dot, max=0) / other.square().sum().clamp(min=1e-9) * other
    joined, place = torch.stack(projected).sum(0), 0
    for weight in shared:
        weight.grad = joined[place : place + weight.numel()].view_as(weight).clone()
        place += weight.numel()
    opt.step()
    opt.zero_grad()
    log.append({"step": step, "norm": joined.norm().item()})
