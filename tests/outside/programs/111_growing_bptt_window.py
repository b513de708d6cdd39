"""A recurrent model on 24 interleaved streams: the truncation window is lengthened by a curriculum (4 to 28 time steps, then constant), its outputs are held until the update, and the state of each stream is carried over detached in a fixed slot, so the rise ends with the schedule. Source: https://github.com/dpressel/dliss-tutorial/issues/1 - the author explains why the carried state is detached and backpropagation truncated."""
EXPECTED = {"kind": "innocent"}

import random
import torch
from torch import nn


class MinimalGRU(nn.Module):
    def __init__(self, n_in, n_hid):
        super().__init__()
        self.gates = nn.Linear(n_in + n_hid, 2 * n_hid)
        self.cand = nn.Linear(n_in + n_hid, n_hid)

    def forward(self, x, h):
        z, r = torch.sigmoid(self.gates(torch.cat([x, h], -1))).chunk(2, -1)
        n = torch.tanh(self.cand(torch.cat([x, r * h], -1)))
        return (1 - z) * h + z * n


N_STREAMS, LANES, N_IN, N_HID = 24, 128, 64, 512

cell = MinimalGRU(N_IN, N_HID).cuda()
readout = nn.Linear(N_HID, N_IN).cuda()
params = list(cell.parameters()) + list(readout.parameters())
opt = torch.optim.RMSprop(params, lr=1e-3)
slots = {}                                   # stream number -> its latest state
rng = random.Random(17)


def unroll(stream, window):
    h = slots.get(stream)
    if h is None:
        h = torch.zeros(LANES, N_HID, device="cuda")
    outs, losses = [], []
    x = torch.randn(LANES, N_IN, device="cuda")
    for _ in range(window):
        h = cell(x, h)
        y = readout(h)
        nxt = torch.randn(LANES, N_IN, device="cuda")
        losses.append((y - nxt).pow(2).mean())
        outs.append(y)
        x = nxt
    slots[stream] = h.detach()
    return torch.stack(outs), torch.stack(losses).mean()


for update in range(120):
    window = min(28, 4 + 3 * (update // 8))
    outs, loss = unroll(rng.randrange(N_STREAMS), window)
    smooth = 1e-3 * (outs[1:] - outs[:-1]).pow(2).mean()
    opt.zero_grad()
    (loss + smooth).backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    if update % 30 == 29:
        print(f"update {update + 1}: window {window}, streams met {len(slots)}, loss {loss.item():.4f}")
