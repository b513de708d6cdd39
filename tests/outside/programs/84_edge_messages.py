"""Full-graph training: nodes and weights are small, but the convolution writes out one message per edge, and millions of edges times the feature width do not fit. Source: https://github.com/pyg-team/pytorch_geometric/issues/459 - the message tensor has one row per edge (9 million x 200) and ran out of memory; advised: a sparse matrix product, or sampling of neighbours."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["activations"],
            "mentions": [["edge", "message", "sparse", "sampl", "neighbo", "gather", "index", "batch", "scatter", "feature"]]}

# Arithmetic: 14,049 nodes x 200 x 4 bytes = 11 MiB. 4,000,000 edges x 200 x 4 bytes = 3052 MiB for h[source] alone, and its
# product with the edge weights is 3052 MiB more = 6104 MiB > 6144 - 430 = 5714 MiB: dies in the first convolution.
import torch
import torch.nn as nn

NODES, EDGES, DIM = 14_049, 4_000_000, 200


def random_graph():
    edge_index = torch.randint(0, NODES, (2, EDGES))
    degree = torch.bincount(edge_index[1], minlength=NODES).clamp(min=1).float()
    norm = degree.rsqrt()[edge_index[0]] * degree.rsqrt()[edge_index[1]]
    return edge_index, norm


class GraphConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Linear(cin, cout)

    def message(self, h, source, norm):
        return norm.view(-1, 1) * h[source]  # <- here

    def forward(self, x, edge_index, norm):
        source, target = edge_index
        h = self.lin(x)
        out = torch.zeros_like(h)
        return out.index_add(0, target, self.message(h, source, norm))


class GCN(nn.Module):
    def __init__(self, classes=30):
        super().__init__()
        self.x = nn.Parameter(torch.randn(NODES, DIM))
        self.conv1 = GraphConv(DIM, DIM)
        self.conv2 = GraphConv(DIM, classes)

    def forward(self, edge_index, norm):
        h = torch.relu(self.conv1(self.x, edge_index, norm))
        return self.conv2(h, edge_index, norm)


edge_index, norm = (t.cuda() for t in random_graph())
labels = torch.randint(0, 30, (NODES,)).cuda()
gcn = GCN().cuda()
opt = torch.optim.Adam(gcn.parameters(), lr=0.01, weight_decay=5e-4)
for epoch in range(60):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(gcn(edge_index, norm), labels)
    loss.backward()
    opt.step()
    print(epoch, loss.item())
