"""Block-wise distillation: hidden states that several blocks share are moved only once, through a dictionary with weak keys from a tensor to its offloaded copy; with the offload device set to cuda the copy is the tensor itself, so the value keeps its own key alive and no entry ever dies. Source: https://github.com/vllm-project/llm-compressor/pull/2387 - established that an entry of the WeakKeyDictionary whose value is identical to its key is never collected, which is the case when the offload device is cuda."""
EXPECTED = {"kind": "leak", "holder": ["offloaded", "OFFLOADED", "Weak"], "growing": True}

import argparse

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

offloaded = WeakTensorKeyDictionary()


def share(tensor, device):
    """Move a tensor once, however many blocks ask for it."""
    moved = offloaded.get(tensor)
    if moved is None:
        moved = tensor.to(device)
        offloaded[tensor] = moved  # <- here
    return moved


class Intermediates:
    """What the teacher computed for one batch, block by block."""

    def __init__(self, device):
        self.device = device
        self.inputs, self.outputs = {}, {}

    def record(self, index, x, y):
        self.inputs[index] = share(x, self.device)
        self.outputs[index] = share(y, self.device)

    def fetch(self, index):
        return self.inputs[index].to("cuda"), self.outputs[index].to("cuda")


def block(width, hidden):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


@torch.no_grad()
def run_teacher(teacher, x, device):
    found = Intermediates(device)
    for i, b in enumerate(teacher):
        y = x + b(x)  # <- here
        found.record(i, x, y)
        x = y
    return found


def main(args):
    teacher = nn.ModuleList(block(args.width, 4 * args.width) for _ in range(args.blocks)).cuda().eval()
    student = nn.ModuleList(block(args.width, args.width) for _ in range(args.blocks)).cuda()
    opt = torch.optim.AdamW(student.parameters(), lr=2e-4)

    for step in range(args.steps):
        tokens = torch.randn(args.batch, args.width, device="cuda")
        found = run_teacher(teacher, tokens, args.offload_device)
        opt.zero_grad(set_to_none=True)
        total = 0.0
        for i, b in enumerate(student):
            x, y = found.fetch(i)
            loss = nn.functional.mse_loss(x + b(x), y)
            loss.backward()
            total += loss.item()
        opt.step()
        if (step + 1) % 20 == 0:
            print(f"[{step + 1}/{args.steps}] distillation {total / args.blocks:.5f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=512)
    p.add_argument("--blocks", type=int, default=4)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--offload-device", default="cuda")
    main(p.parse_args())
