"""Each validation gathers its predictions on the device, joins and returns them; the caller keeps the newest result for a comparison with the one before. Right: two results at most."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 50)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
held = torch.randn(40, 128, 64)


@torch.no_grad()
def validate():
    net.eval()
    outputs = [net(x.cuda()).softmax(1) for x in held]
    net.train()
    return torch.cat(outputs)


before = None
for epoch in range(8):
    for _ in range(15):
        x = torch.randn(128, 64, device="cuda")
        loss = nn.functional.cross_entropy(net(x), torch.randint(0, 50, (128,), device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
    now = validate()
    if before is not None:
        print(epoch, (now.argmax(1) != before.argmax(1)).float().mean().item())
    before = now
