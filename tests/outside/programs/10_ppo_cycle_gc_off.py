"""PPO inside a simulator process in which Python's cyclic garbage collector has been switched off; every micro-batch object refers to itself through a closure, so its rollout tensors are never released although nothing uses them. Source: https://github.com/NVlabs/GR00T-WholeBodyControl/issues/220 - the issue established that the simulator disables automatic gc and that the reference cycles of the PPO micro-batch loop are then never collected, a linear leak."""
EXPECTED = {"kind": "leak", "holder": ["MicroBatch", "cycle", "surrogate", "closure"], "growing": True}

import gc

import torch
from torch import nn

# what the simulator's kit does at start-up
gc.disable()  # <- here


class Policy(nn.Module):
    def __init__(self, n_obs=256, n_act=8):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(n_obs, 256), nn.Tanh(), nn.Linear(256, n_act))
        self.v = nn.Sequential(nn.Linear(n_obs, 256), nn.Tanh(), nn.Linear(256, 1))

    def log_prob(self, obs, act):
        return torch.log_softmax(self.pi(obs), -1).gather(1, act).squeeze(1)


class MicroBatch:
    def __init__(self, obs, act, old_logp, adv, ret):
        self.obs, self.act, self.old_logp = obs, act, old_logp
        self.adv, self.ret = adv, ret

        def surrogate(policy, clip=0.2):
            ratio = (policy.log_prob(self.obs, self.act) - self.old_logp).exp()
            gain = torch.minimum(ratio * self.adv, ratio.clamp(1 - clip, 1 + clip) * self.adv)
            value = (policy.v(self.obs).squeeze(1) - self.ret).pow(2)
            return value.mean() - gain.mean()

        self.surrogate = surrogate  # <- here


def rollout(policy, n=8192):
    with torch.no_grad():
        obs = torch.randn(n, 256, device="cuda")
        act = torch.zeros(n, 1, dtype=torch.long, device="cuda")
        return obs, act, policy.log_prob(obs, act), torch.randn(n, device="cuda"), torch.randn(n, device="cuda")


def micro_batches(data, size=2048):
    n = data[0].shape[0]
    for start in range(0, n, size):
        yield MicroBatch(*[d[start:start + size].clone() for d in data])  # <- here


def learn(iterations=20):
    policy = Policy().cuda()
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
    for it in range(iterations):
        data = rollout(policy)
        for mb in micro_batches(data):
            loss = mb.surrogate(policy)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            opt.step()
        if it % 5 == 0:
            print("iteration", it, loss.item())


learn()
