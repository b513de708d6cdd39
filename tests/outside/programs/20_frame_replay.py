"""DQN with a replay memory of image transitions on the GPU: memory climbs while the memory fills and then stays at its capacity. Source: https://github.com/toshikwa/sac-discrete.pytorch/issues/28 - the authors established that the suspected leak is the replay memory, whose usage increases until its configured size is reached."""
EXPECTED = {"kind": "innocent"}

import collections
import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

Transition = collections.namedtuple("Transition", "state action reward next_state")


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = collections.deque(maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        rows = random.sample(self.memory, n)
        return Transition(*(torch.cat(c) for c in zip(*rows)))

    def __len__(self):
        return len(self.memory)


class QNet(nn.Module):
    def __init__(self, n_actions=4):
        super().__init__()
        self.fc1 = nn.Linear(4 * 84 * 84, 128)
        self.fc2 = nn.Linear(128, n_actions)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1).float() / 255)))


policy = QNet().cuda()
target = copy.deepcopy(policy).requires_grad_(False)
opt = torch.optim.Adam(policy.parameters(), lr=1e-4)
memory = ReplayMemory(capacity=24)

state = torch.zeros(32, 4, 84, 84, dtype=torch.uint8, device="cuda")
for step in range(140):
    with torch.no_grad():
        action = policy(state).argmax(1, keepdim=True)
    next_state = torch.randint(0, 255, (32, 4, 84, 84), dtype=torch.uint8, device="cuda")
    memory.push(state, action, torch.zeros(32, 1, device="cuda"), next_state)
    state = next_state

    if len(memory) >= 2:
        b = memory.sample(2)
        q = policy(b.state).gather(1, b.action)
        with torch.no_grad():
            goal = b.reward + 0.99 * target(b.next_state).max(1, keepdim=True).values
        loss = F.smooth_l1_loss(q, goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if step % 35 == 0:
        target.load_state_dict(policy.state_dict())
        print(step, len(memory))
