"""A wide MLP fits with its gradients on the card and would train with SGD, but dies in the very first optimizer.step(), when Adam allocates its two moments for every parameter. Source: https://github.com/OpenMOSS/MOSS-TTS/issues/198 - training crashes at optimizer.step() for lack of memory, put down to the AdamW states (same symptom, SGD fits and Adam does not: https://github.com/pytorch/pytorch/issues/9439)."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["optimizer"],
            "mentions": [["adam", "optimizer state", "optimizer's state", "exp_avg", "moment", "sgd", "8-bit", "8bit"]]}

# Arithmetic: 10 layers of 5120x5120 floats = 10 x 100 MiB = 1000 MiB of weights.
# After backward: weights + gradients = 2000 MiB, which fits even if only 2572 MiB are usable.
# Adam wants 2 x 1000 MiB more = 4000 MiB in all > 3072 MiB: dies inside the first step.
import torch
import torch.nn as nn

WIDTH, LAYERS, BATCH = 5120, 10, 8


class WideNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(LAYERS)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


net = WideNet()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
criterion = nn.MSELoss()
for step in range(40):
    images = torch.randn(BATCH, WIDTH, device="cuda")
    wanted = torch.randn(BATCH, WIDTH, device="cuda")
    optimizer.zero_grad()
    loss = criterion(net(images), wanted)
    loss.backward()
    optimizer.step()
    print(step, loss.item())
