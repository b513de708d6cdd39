"""A learner adapts with torch.func from the weights that the task before has left, and these still have their graph, so that each task's graph hangs on all earlier ones. The outer loss goes backward through the last task only. Pattern: online meta-learning."""
EXPECTED = {"kind": "leak", "holder": ["fast", "learner"], "growing": True}

import torch
from torch import nn
from torch.func import functional_call


class Learner:
    def __init__(self, net, rate=0.05):
        self.net, self.rate = net, rate
        self.fast = {name: weight.detach().clone().requires_grad_() for name, weight in net.named_parameters()}

    def loss(self, weights, x, y):
        return (functional_call(self.net, weights, (x,)) - y).square().mean()

    def adapt(self, x, y):
        names = list(self.fast)
        slopes = torch.autograd.grad(self.loss(self.fast, x, y), [self.fast[name] for name in names], create_graph=True)
        self.fast = {name: self.fast[name] - self.rate * slope for name, slope in zip(names, slopes)}  # <- here


net = nn.Sequential(nn.Linear(8, 96), nn.Tanh(), nn.Linear(96, 1)).cuda()
head = nn.Linear(1, 1).cuda()
opt = torch.optim.Adam(head.parameters())
learner = Learner(net)
for task in range(72):
    x, y = torch.randn(200, 8, device="cuda"), torch.randn(200, 1, device="cuda")
    learner.adapt(x, y)
    guess = functional_call(net, learner.fast, (x,))
    loss = (head(guess.detach()) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
