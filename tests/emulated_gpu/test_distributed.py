"""Two processes, two emulated devices: NCCL sends nothing, each rank's share of the memory is real."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
import json, os, sys, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn

def rank_main(rank, path):
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method="file://" + path, rank=rank, world_size=2, device_id=device)
    model = wrapped(rank)
    weights = torch.cuda.memory_allocated()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.empty(4, 128, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    told = json.dumps([rank, parameters, weights, torch.cuda.max_memory_allocated()])
    os.write(1, f"{told}\\n".encode())  # in one piece: both ranks write to the same pipe
    os._exit(0)

with torch.device("meta"):
    bare = nn.Sequential(*[nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(4)])
parameters = sum(p.numel() for p in bare.parameters())
"""

FSDP2 = """
from torch.distributed.fsdp import fully_shard
def wrapped(rank):
    for layer in bare:
        fully_shard(layer)
    return fully_shard(bare).to_empty(device="cuda")
"""

DDP = """
from torch.nn.parallel import DistributedDataParallel
def wrapped(rank):
    return DistributedDataParallel(bare.to_empty(device="cuda"), device_ids=[rank])
"""

# forked, for torch need not be imported again: the parent has not touched the devices
START = 'mp.start_processes(rank_main, (tempfile.mktemp(),), nprocs=2, start_method="fork")'


@pytest.mark.parametrize(("wrapping", "share"), [(FSDP2, 2), (DDP, 0.5)], ids=["FSDP2", "DDP"])
def test_each_rank_holds_its_share(run_python, shared_ledger, wrapping, share):
    """FSDP2 leaves half of the weights on each of two ranks; DDP all of them, and its gradient buckets as large again."""
    shown = run_python(PROGRAM + wrapping + START, EMULATED_GPU_DEVICES="2", EMULATED_GPU_LEDGER=shared_ledger)
    results = sorted(json.loads(line) for line in shown.splitlines())
    assert [rank for rank, *_ in results] == [0, 1]
    for _, parameters, weights, peak in results:
        assert weights == pytest.approx(4 * parameters / share, rel=0.02)
        assert peak > 3 * weights * (1 if share > 1 else 0.5)
