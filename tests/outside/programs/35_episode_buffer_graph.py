"""A multi-agent Q-learner with an episode buffer; the runner puts the acting network's soft actions into the buffer with their computation graph, so all activations of every acting forward pass stay on the GPU. Source: https://github.com/oxwhirl/pymarl/pull/73 - the pull request established that the actions must be detached before they are stored, else the entire graph that generated them is never released."""
EXPECTED = {"kind": "leak", "holder": ["buffer", "storage", "actions"], "growing": True}

from collections import deque
import random

import torch
import torch.nn as nn

dev = torch.device("cuda:0")


class Agent(nn.Module):
    def __init__(self, n_obs=64, n_act=16):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_obs, 512), nn.ReLU(),
            nn.Linear(512, 512), nn.ReLU(),
            nn.Linear(512, n_act),
        )

    def forward(self, obs):
        return self.net(obs)


class EpisodeBuffer:
    def __init__(self, capacity):
        self.storage = deque(maxlen=capacity)

    def insert(self, episode):
        self.storage.append(episode)  # <- here

    def sample(self):
        return random.choice(self.storage)


class EpisodeRunner:
    def __init__(self, agent, n_envs=2048):
        self.agent, self.n_envs = agent, n_envs

    def run(self):
        obs = torch.randn(self.n_envs, 64, device=dev)
        actions = torch.softmax(self.agent(obs), dim=-1)  # <- here
        reward = torch.randn(self.n_envs, device=dev)
        return {"obs": obs, "actions": actions, "reward": reward}


class Learner:
    def __init__(self, agent):
        self.agent = agent
        self.opt = torch.optim.RMSprop(agent.parameters(), lr=5e-4)

    def train(self, episode):
        q = self.agent(episode["obs"])
        chosen = (q * episode["actions"].detach()).sum(-1)
        loss = (chosen - episode["reward"]).pow(2).mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return float(loss)


agent = Agent().to(dev)
runner, learner, buffer = EpisodeRunner(agent), Learner(agent), EpisodeBuffer(capacity=5000)
for episode_id in range(60):
    buffer.insert(runner.run())
    value = learner.train(buffer.sample())
    if episode_id % 20 == 0:
        print(episode_id, value)
