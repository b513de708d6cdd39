"""The loader of an atomistic data set sends every graph to the GPU while it reads it, long before a batch needs it; the data set is larger than the card. Source: https://github.com/ORNL/HydraGNN/issues/88 - the loader's data.to(device) mapped the whole data set at once on the GPU and ran out of memory; mended by moving batch by batch."""
EXPECTED = {"kind": "oom", "memory": "2G", "cause": ["input"],
            "holder": ["graphs", "dataset", "train_set", "samples", "data"],
            "mentions": [["batch", "dataset", "data set", "cpu", "dataloader", "graphs", "input data"]]}

# Arithmetic: a graph has 40,000 atoms x 9 floats = 1.37 MiB and 120,000 edges x 2 x 8 bytes = 1.83 MiB, together 3.2 MiB.
# 600 training graphs = 1920 MiB > 2048 - 430 = 1618 MiB: dies while loading, after some 450 graphs.
# The model has a few thousand weights.
import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class SerializedLoader:
    """Stands in for the pickled files: scales one lattice, so that reading is fast."""

    def __init__(self, atoms=40_000):
        self.lattice = torch.rand(atoms, 9)
        self.edge_index = torch.randint(0, atoms, (2, 3 * atoms))

    def load(self, count):
        graphs = []
        for i in range(count):
            x = self.lattice * (1.0 + 0.001 * i)
            graphs.append({
                "x": x.to(device),  # <- here
                "edge_index": self.edge_index.clone().to(device),  # <- here
                "energy": float(i % 7),
            })
        return graphs


class GraphNet(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.lift = nn.Linear(9, dim)
        self.mix = nn.Linear(dim, dim)
        self.read = nn.Linear(dim, 1)

    def forward(self, x, edge_index):
        h = torch.relu(self.lift(x))
        src, dst = edge_index
        h = h + torch.relu(self.mix(torch.zeros_like(h).index_add(0, dst, h[src])))
        return self.read(h.mean(0))


model = GraphNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = SerializedLoader()
val_set = loader.load(40)
print("validation graphs", len(val_set))
train_set = loader.load(600)
for epoch in range(2):
    for graph in train_set[:100]:
        optimizer.zero_grad()
        loss = (model(graph["x"], graph["edge_index"]) - graph["energy"]).square().mean()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
