"""The first batch size does not fit; the script catches the error, leaves the except block, halves the batch until a step succeeds, and then trains to the end. Source: https://github.com/pytorch/pytorch/issues/18853 - recovery from a CUDA OOM by lowering the batch size works if the exception (whose traceback holds the tensors) is not in scope; recover outside the except block."""
EXPECTED = {"kind": "innocent", "memory": "4G"}

# Arithmetic: a picture leaves 5 maps of 64 x 128 x 128 x 4 bytes = 4 MiB and their ReLU outputs: about 40 MiB.
# 256 pictures = 10 GiB and 128 = 5 GiB do not fit in 3666 MiB; 64 pictures = 2.6 GiB do. Two errors are caught.
import torch
from torch import nn


def convnet(width=64, depth=5):
    blocks, c = [], 3
    for _ in range(depth):
        blocks += [nn.Conv2d(c, width, 3, padding=1), nn.ReLU()]
        c = width
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))


def one_step(net, opt, n):
    x = torch.randn(n, 3, 128, 128, device="cuda")
    y = torch.randint(0, 100, (n,), device="cuda")
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.item()


def find_batch_size(net, opt, start):
    n = start
    while n >= 1:
        failed = False
        try:
            one_step(net, opt, n)
        except torch.cuda.OutOfMemoryError:
            failed = True
        if not failed:
            return n
        opt.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        print("batch of", n, "does not fit, trying", n // 2)
        n //= 2
    raise SystemExit("not even one picture fits")


net = convnet().cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
batch = find_batch_size(net, opt, 256)
print("training with", batch)
for step in range(40):
    value = one_step(net, opt, batch)
    if step % 10 == 0:
        print(step, value)
