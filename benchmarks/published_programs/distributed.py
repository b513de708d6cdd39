"""Two ranks that share the states of an optimizer."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from published_programs import program


def _rank(rank: int, shared: bool, port: int, folder: str) -> None:
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    dist.init_process_group("gloo", rank=rank, world_size=2)
    found = {}
    model = nn.Sequential(*(nn.Linear(2000, 2000).to(rank) for _ in range(20)))
    found["model"] = torch.cuda.max_memory_allocated(rank)
    parallel = DistributedDataParallel(model, device_ids=[rank])
    found["parallel"] = torch.cuda.max_memory_allocated(rank)
    if shared:
        optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
            parallel.parameters(), optimizer_class=torch.optim.Adam, lr=0.01, foreach=False
        )
    else:
        optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01, foreach=False)
    outputs = parallel(torch.randn(20, 2000).to(rank))
    labels = torch.randn(20, 2000).to(rank)
    nn.MSELoss()(outputs, labels).backward()
    found["before the step"] = torch.cuda.max_memory_allocated(rank)
    optimizer.step()
    found["after the step"] = torch.cuda.max_memory_allocated(rank)
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@program
def shared_optimizer(*, shared: bool) -> Mapping[str, float]:
    """PyTorch's recipe: twenty wide layers with Adam on two ranks, whose states are shared or not."""
    import torch.multiprocessing as mp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(shared, port, folder), nprocs=2, join=True)
        found: dict[str, float] = json.loads((Path(folder) / "found.json").read_text())
    return found
