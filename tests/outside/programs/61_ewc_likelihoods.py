"""Elastic weight consolidation over a row of tasks: the Fisher estimate appends the log-likelihood of each sample batch (with its graph) to a list on the regulariser, and the list is carried over all tasks. Source: https://github.com/shivamsaboo17/Overcoming-Catastrophic-forgetting-in-Neural-Networks/issues/2 - the author established that keeping the likelihoods of the whole data in a list is the problem, and that a running mean should be used."""
EXPECTED = {"kind": "leak", "holder": ["log_likelihoods"], "growing": True}

import torch
import torch.nn as nn
import torch.nn.functional as F


class ElasticWeights:
    def __init__(self, model, importance):
        self.model = model
        self.importance = importance
        self.log_likelihoods = []
        self.fisher = {}
        self.anchor = {}

    def consolidate(self, batches):
        names, params = zip(*self.model.named_parameters())
        fresh = [torch.zeros_like(p) for p in params]
        for x, y in batches:
            logp = F.log_softmax(self.model(x), dim=1)  # <- here
            self.log_likelihoods.append(logp[torch.arange(len(y)), y])  # <- here
            grads = torch.autograd.grad(self.log_likelihoods[-1].mean(), params, retain_graph=True)
            for f, g in zip(fresh, grads):
                f.add_(g.pow(2))
        for n, p, f in zip(names, params, fresh):
            old = self.fisher.get(n)
            self.fisher[n] = f if old is None else 0.5 * old + 0.5 * f
            self.anchor[n] = p.detach().clone()

    def penalty(self):
        if not self.fisher:
            return 0.0
        terms = [(self.fisher[n] * (p - self.anchor[n]) ** 2).sum() for n, p in self.model.named_parameters()]
        return self.importance * torch.stack(terms).sum()


def sample_batch(task, n):
    return torch.randn(n, 600, device="cuda") + 0.1 * task, torch.randint(0, 10, (n,)).cuda()


def learn(model, ewc, optimizer, task, steps=11):
    for _ in range(steps):
        x, y = sample_batch(task, 128)
        loss = F.cross_entropy(model(x), y) + ewc.penalty()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ewc.consolidate([sample_batch(task, 256) for _ in range(4)])
    return loss.item()


def main():
    model = nn.Sequential(
        nn.Linear(600, 1000), nn.ReLU(),
        nn.Linear(1000, 1000), nn.ReLU(),
        nn.Linear(1000, 10),
    ).cuda()
    ewc = ElasticWeights(model, importance=400.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for task in range(9):
        print("task", task, "final loss", learn(model, ewc, optimizer, task))


main()
