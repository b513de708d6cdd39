"""A flow-matching sampler is trained; next to it the running average of a monitored loss on terminal states is kept as a tensor, made without detach, so its chain of graphs (and all activations of the monitored forward passes) gets longer with every step. Source: https://github.com/alexhernandezgarcia/gflownet/pull/133 - the pull request established that the moving averages of the loss were computed in torch without detaching and so kept the whole computation graph."""
EXPECTED = {"kind": "leak", "holder": ["ema_term_loss", "ema"], "growing": True}

import torch
import torch.nn.functional as F


class FlowNet(torch.nn.Module):
    def __init__(self, n_in=64, width=512):
        super().__init__()
        self.fc1 = torch.nn.Linear(n_in, width)
        self.fc2 = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, n_in)

    def forward(self, s):
        h = F.leaky_relu(self.fc1(s))
        h = F.leaky_relu(self.fc2(h))
        return self.out(h)


class GFlowAgent:
    def __init__(self, beta=0.95):
        self.net = FlowNet().cuda()
        self.opt = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.beta = beta
        self.ema_term_loss = None

    def flow_loss(self, states):
        return self.net(states).logsumexp(-1).pow(2).mean()

    def term_loss(self, states):
        return (self.net(states).logsumexp(-1) - 1.0).pow(2).mean()

    def learn_from(self, states, terminal):
        loss = self.flow_loss(states)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()

        monitored = self.term_loss(terminal)
        if self.ema_term_loss is None:
            self.ema_term_loss = monitored  # <- here
        else:
            self.ema_term_loss = self.beta * self.ema_term_loss + (1 - self.beta) * monitored  # <- here
        return loss.item()


agent = GFlowAgent()
for it in range(70):
    value = agent.learn_from(
        torch.randn(512, 64, device="cuda"),
        torch.randn(512, 64, device="cuda"),
    )
    if it % 20 == 0:
        print(it, value, float(agent.ema_term_loss))
