"""A traffic forecaster is trained with batches of 24, but after the epoch the whole validation set of 2400 windows goes through the network in one call; there are no gradients, and still the activations of one layer are larger than the card. Source: https://github.com/FelixOpolka/STGCN-PyTorch/issues/12 - the whole validation set was passed at once and ran out of memory; evaluation in pieces of the batch size is the fix."""
EXPECTED = {
    "kind": "oom",
    "memory": "512MiB",
    "cause": ["activations", "batch_size"],
    "mentions": [["batch", "chunk", "split", "smaller"]],
}

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES, T_IN, T_OUT = 50, 12, 3


class TimeBlock(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.a = nn.Conv2d(c_in, c_out, (1, 3))
        self.b = nn.Conv2d(c_in, c_out, (1, 3))

    def forward(self, x):
        x = x.permute(0, 3, 1, 2)
        return (self.a(x) * torch.sigmoid(self.b(x))).permute(0, 2, 3, 1)


class STBlock(nn.Module):
    def __init__(self, c_in, hidden):
        super().__init__()
        self.t1 = TimeBlock(c_in, hidden)
        self.theta = nn.Parameter(torch.randn(hidden, 16) * 0.1)
        self.t2 = TimeBlock(16, hidden)

    def forward(self, x, adj):
        t = self.t1(x)
        g = torch.einsum("ij,bjtc->bitc", adj, t)
        return self.t2(F.relu(g @ self.theta))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.s1 = STBlock(2, 96)
        self.s2 = STBlock(96, 96)
        self.out = nn.Linear(4 * 96, T_OUT)

    def forward(self, adj, x):
        h = self.s2(self.s1(x, adj), adj)
        return self.out(h.flatten(2))


def windows(n):
    return torch.randn(n, NODES, T_IN, 2), torch.randn(n, NODES, T_OUT)


adj = torch.softmax(torch.randn(NODES, NODES), 1).cuda()
train_x, train_y = windows(24 * 30)
val_x, val_y = windows(2400)
net = Forecaster().cuda()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
criterion = nn.MSELoss()

for epoch in range(2):
    net.train()
    order = torch.randperm(len(train_x))
    losses = []
    for i in range(0, len(order), 24):
        rows = order[i:i + 24]
        xb, yb = train_x[rows].cuda(), train_y[rows].cuda()
        optimizer.zero_grad()
        loss = criterion(net(adj, xb), yb)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print("epoch", epoch, "train", sum(losses) / len(losses))

    net.eval()
    with torch.no_grad():
        predicted = net(adj, val_x.cuda())
        print("epoch", epoch, "validation", criterion(predicted, val_y.cuda()).item())
