"""Graph batches are moved to the GPU in the first pass and kept there for the following passes: memory rises during the first epoch and is level from the second on, as intended. Source: https://github.com/pyg-team/pytorch_geometric/pull/7896 - the change introduced a loader that caches batches on the device and says that additional device memory is allocated for it."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class SubgraphDataset(Dataset):
    def __init__(self, count, nodes=600, edges=3000, features=128):
        self.count, self.nodes, self.edges, self.features = count, nodes, edges, features

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return {
            "x": torch.randn(self.nodes, self.features, generator=g),
            "edge_index": torch.randint(0, self.nodes, (2, self.edges), generator=g),
            "y": torch.randint(0, 7, (self.nodes,), generator=g),
        }


class DeviceCachedLoader:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device
        self.cache, self.filled = [], False

    def __iter__(self):
        if self.filled:
            yield from self.cache
            return
        for batch in self.loader:
            batch = {k: v.to(self.device) for k, v in batch.items()}
            self.cache.append(batch)
            yield batch
        self.filled = True


class SageLayer(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.own, self.neighbours = nn.Linear(cin, cout), nn.Linear(cin, cout, bias=False)

    def forward(self, x, edge_index):
        src, dst = edge_index
        gathered = torch.zeros_like(x).index_add(0, dst, x[src])
        return self.own(x) + self.neighbours(gathered)


class Sage(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2, self.l3 = SageLayer(128, 768), SageLayer(768, 768), SageLayer(768, 7)

    def forward(self, x, e):
        return self.l3(torch.relu(self.l2(torch.relu(self.l1(x, e)), e)), e)


model = Sage().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
batches = DeviceCachedLoader(DataLoader(SubgraphDataset(28), batch_size=None), "cuda")

for epoch in range(5):
    for batch in batches:
        out = model(batch["x"], batch["edge_index"])
        loss = nn.functional.cross_entropy(out, batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, "loss", loss.item())
