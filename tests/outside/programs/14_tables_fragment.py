"""A bank of frozen half-precision embedding tables is loaded one after the other: each comes to the GPU in float32, is converted there and the float32 tensor dropped. The next table is a bit larger than the hole left, so the card fills with holes, and the first real batch finds no contiguous room though enough memory is free. Source: https://github.com/yuantianyuan01/FastWAM/pull/20 - the pull request established that temporary GPU tensors made while loading inflate the reserved memory of the caching allocator, and loads to the CPU instead."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["fragmentation"],
            "mentions": [["expandable_segments", "max_split_size", "fragment", "map_location", "on the cpu", "to cpu", "empty_cache"]]}

# Arithmetic (MiB): float32 table k takes 40+2k, k = 0..29; its half 20+k goes into the block of
# table k-1 and leaves a hole of 19+(k-1), too small for any later half. Reserved after loading:
# 20 + sum(40+2k) = 2090; allocated: sum(20+k) = 1035. The batch asks for 325*512*4096*2 bytes =
# 1300 MiB: at most 3072-2090+98 = 1080 can be had from the card, the biggest hole is < 50.
# Unfragmented it would fit: 1035 + 1300 = 2335 < 2572.
import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, N_TABLES = 4096, 30


def read_table(k):
    """Stands for reading the k-th language's table straight to the GPU."""
    rows = 2560 + 128 * k
    return torch.empty(rows, DIM, dtype=torch.float32, device="cuda")


class TableBank(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ParameterList()

    def load(self):
        for k in range(N_TABLES):
            full = read_table(k)
            self.tables.append(nn.Parameter(full.half(), requires_grad=False))
            del full
        return self

    def forward(self, ids, language):
        return F.embedding(ids, self.tables[language])


bank = TableBank().load()
print("loaded:", torch.cuda.memory_allocated() >> 20, "MiB allocated,", torch.cuda.memory_reserved() >> 20, "MiB reserved")

head = nn.Linear(DIM, 16).half().cuda()
opt = torch.optim.SGD(head.parameters(), lr=0.1)
for step in range(40):
    ids = torch.zeros(325, 512, dtype=torch.long, device="cuda")
    with torch.no_grad():
        pooled = bank(ids, step % N_TABLES).mean(dim=1)
    loss = head(pooled).float().pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
