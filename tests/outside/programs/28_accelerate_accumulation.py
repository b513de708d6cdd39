"""Gradient accumulation with accelerate: after the first micro-batch the gradients stay allocated until the optimizer steps, so that memory at the end of a micro-batch differs over the cycle; losses are summed as Python floats. Source: https://github.com/huggingface/accelerate/issues/2035 - the discussion established that the micro-steps accumulate into one and the same gradient buffer and need no further memory per micro-step."""
EXPECTED = {"kind": "innocent"}

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=4)

net = nn.Sequential(
    nn.LayerNorm(512), nn.Linear(512, 1024), nn.GELU(),
    nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 8),
)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4)
loader = DataLoader(TensorDataset(torch.zeros(80 * 32, 512), torch.zeros(80 * 32, dtype=torch.long)), batch_size=32)
net, optimizer, loader = accelerator.prepare(net, optimizer, loader)

log = []
for epoch in range(2):
    loss_sum = 0.0
    for features, labels in loader:
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(features), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        loss_sum += loss.item()
        log.append(loss_sum)
    print("epoch", epoch, loss_sum / len(loader))
