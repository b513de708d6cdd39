"""Link prediction on a stream of interactions with one state vector per node: the whole table of node states is kept on the device next to the table of last messages, which is a lot, but both are made once, written in place and detached from the steps. Source: https://github.com/twitter-research/tgn/issues/16 - a user ran out of memory as soon as node memory was switched on; the maintainer answered that the implementation keeps the memory of all nodes on the GPU, which is a matter of the number of nodes."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn


class NodeMemory(nn.Module):
    def __init__(self, num_nodes, dim):
        super().__init__()
        self.register_buffer("state", torch.zeros(num_nodes, dim))
        self.register_buffer("last_message", torch.zeros(num_nodes, 2 * dim))
        self.register_buffer("last_update", torch.zeros(num_nodes))
        self.updater = nn.GRUCell(2 * dim, dim)

    def fresh(self, nodes):
        return self.updater(self.last_message[nodes], self.state[nodes])

    @torch.no_grad()
    def write(self, nodes, state, message, when):
        self.state[nodes] = state.detach()
        self.last_message[nodes] = message.detach()
        self.last_update[nodes] = when


class LinkPredictor(nn.Module):
    def __init__(self, num_nodes, dim):
        super().__init__()
        self.memory = NodeMemory(num_nodes, dim)
        self.score = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, src, dst, neg, when):
        n = len(src)
        s, d, g = self.memory.fresh(torch.cat([src, dst, neg])).split(n)
        pos = self.score(torch.cat([s, d], 1))
        bad = self.score(torch.cat([s, g], 1))
        self.memory.write(src, s, torch.cat([s, d], 1), when)
        self.memory.write(dst, d, torch.cat([d, s], 1), when)
        return pos, bad


def interactions(batches, size, num_nodes):
    rnd = random.Random(9)
    clock = 0.0
    for _ in range(batches):
        clock += rnd.random()
        yield [torch.tensor(rnd.sample(range(num_nodes), size)) for _ in range(3)], clock


if __name__ == "__main__":
    NODES, DIM = 60_000, 160
    model = LinkPredictor(NODES, DIM).cuda()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    loss_fn = nn.BCEWithLogitsLoss()
    losses = []
    for k, (ids, clock) in enumerate(interactions(120, 400, NODES), 1):
        src, dst, neg = (i.cuda(non_blocking=True) for i in ids)
        pos, bad = model(src, dst, neg, clock)
        loss = loss_fn(pos, torch.ones_like(pos)) + loss_fn(bad, torch.zeros_like(bad))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if k % 40 == 0:
            print(k, sum(losses[-40:]) / 40)
