"""A fault-injection study while fine-tuning: every step creates a new injector that registers forward hooks on the network and throws the handles away, so all earlier injectors with their fault masks stay attached. Source: https://github.com/fffasttime/MRFI/pull/5 - established that the discarded RemovableHandles keep each instance's closures registered on the model; the fix keeps the handles and removes them."""
EXPECTED = {"kind": "leak", "holder": ["_forward_hooks", "FaultInjector", "masks"], "growing": True}

import torch
import torch.nn as nn


class FaultInjector:
    def __init__(self, network, shapes, rate):
        self.masks = {}
        self.armed = True
        for name, layer in network.named_modules():
            if name in shapes:
                self.masks[name] = (torch.rand(shapes[name], device="cuda") < rate).float()  # <- here
                layer.register_forward_hook(self.make_hook(name))  # <- here

    def make_hook(self, name):
        def hook(layer, args, output):
            if not self.armed:
                return None
            return output * (1.0 - self.masks[name])

        return hook

    def disarm(self):
        self.armed = False


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, 1200)
        self.fc2 = nn.Linear(1200, 1200)
        self.fc3 = nn.Linear(1200, 1200)
        self.out = nn.Linear(1200, 10)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        x = torch.relu(self.fc3(x))
        return self.out(x)


BATCH = 100
network = Mlp().cuda()
optimizer = torch.optim.RMSprop(network.parameters(), lr=1e-4)
shapes = {"fc1": (BATCH, 1200), "fc2": (BATCH, 1200), "fc3": (BATCH, 1200)}
rates = [1e-4, 5e-4, 1e-3, 5e-3]
damage = {r: [] for r in rates}

for trial in range(96):
    rate = rates[trial % len(rates)]
    injector = FaultInjector(network, shapes, rate)  # <- here
    digits = torch.randn(BATCH, 784, device="cuda")
    target = torch.randint(0, 10, (BATCH,)).cuda()

    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(network(digits), target)
    loss.backward()
    optimizer.step()
    damage[rate].append(loss.item())
    injector.disarm()

for rate in rates:
    print(rate, sum(damage[rate]) / len(damage[rate]))
