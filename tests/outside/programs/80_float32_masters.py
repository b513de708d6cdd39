"""A half-precision model was to save memory, but the optimizer wrapper keeps a float32 copy of every parameter, makes float32 gradients for it, and Adam keeps its moments for that copy; the card is full in the first step. Source: https://github.com/facebookresearch/fairseq/pull/404 - with --fp16 a second copy of the parameters was stored in FP32 for the optimizer, which consumed a lot of memory; converting on the fly saved about 20%."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["optimizer", "weights"],
            "mentions": [["master", "fp32", "float32", "copy", "copies", "adam", "moment", "optimizer state", "8-bit", "8bit", "exp_avg"]]}

# Arithmetic: 16 layers of 3584 x 3584 = 205 million parameters. float16 weights 392 MiB and gradients 392 MiB, float32 copy
# 784 MiB, float32 gradients 784 MiB = 2352 MiB. Adam's moments: 1568 MiB more = 3920 MiB > 4096 - 430 = 3666 MiB:
# dies in the first optimizer step.
import torch
import torch.nn as nn

WIDTH, LAYERS = 3584, 16


class HalfOptimizer:
    def __init__(self, params, lr, loss_scale=1024.0):
        self.half = [p for p in params if p.requires_grad]
        self.masters = [nn.Parameter(p.detach().float()) for p in self.half]  # <- here
        self.inner = torch.optim.Adam(self.masters, lr=lr, betas=(0.9, 0.98))
        self.scale = loss_scale

    def zero_grad(self):
        for p in self.half:
            p.grad = None
        self.inner.zero_grad(set_to_none=True)

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self):
        for master, p in zip(self.masters, self.half):
            master.grad = p.grad.float().div_(self.scale)  # <- here
        self.inner.step()  # <- here
        with torch.no_grad():
            for master, p in zip(self.masters, self.half):
                p.copy_(master)


def feed_forward():
    stack = []
    for _ in range(LAYERS):
        stack.append(nn.Linear(WIDTH, WIDTH, bias=False, device="cuda", dtype=torch.float16))
        stack.append(nn.GELU())
    return nn.Sequential(*stack)


model = feed_forward()
optimizer = HalfOptimizer(model.parameters(), lr=5e-4)
for update in range(30):
    x = torch.randn(32, WIDTH, device="cuda").half()
    optimizer.zero_grad()
    loss = (model(x).float() - x.float()).pow(2).mean()
    optimizer.backward(loss)
    optimizer.step()
    print("update", update, "loss", loss.item())
